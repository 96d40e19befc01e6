"""`gspo --install-completion`: writes a script by which bash and zsh complete commands, options, fields and recipes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gspo.config.names import all_keys
from gspo.config.recipes import PREFIX, recipes

SCRIPT = """# Written by `gspo --install-completion`, for bash and zsh.
_gspo() {{
    local words='' word=${{COMP_LINE:0:COMP_POINT}}
    local fields='{fields}'
    word=${{word##* }}
    case $COMP_CWORD:${{COMP_WORDS[1]}} in
        1:*) words='{commands}' ;;
{cases}
    esac
    COMPREPLY=()
    [[ -z $word && $COMP_CWORD != 1 ]] && return  # files
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    COMPREPLY=("${{COMPREPLY[@]#"${{word%"$2"}}"}}")  # bash completes only what follows the colon of recipe:NAME
}}
complete -o default -F _gspo gspo
"""
HINT = """bash reads it in new shells if the package bash-completion is installed; otherwise add to ~/.bashrc:
    source {path}
zsh: add to ~/.zshrc:
    autoload -Uz compinit bashcompinit && compinit && bashcompinit && source {path}"""


class Install(argparse.Action):
    """The option: writes the script into the user's folder of completions, says where, and ends the command."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Raises OSError if the script cannot be written."""
        data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
        path = Path(data) / "bash-completion" / "completions" / "gspo"
        path.parent.mkdir(parents=True, exist_ok=True)
        commands = next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        path.write_text(script(commands), encoding="utf-8")
        print(f"completion {path}\n{HINT.format(path=path)}")
        parser.exit()


def script(commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """The script for these commands, each with its parser."""
    fields = [*(f"--{key}" for key in all_keys()), *(f"{PREFIX}{name}" for name in recipes())]
    cases = []
    for name, command in commands.items():
        options = sorted(word for word in command._option_string_actions if word.startswith("--"))
        cases.append(f'        *:{name}) words="{" ".join(options)}{" $fields" if command.epilog else ""}" ;;')
    return SCRIPT.format(fields=" ".join(fields), commands=" ".join(commands), cases="\n".join(cases))
