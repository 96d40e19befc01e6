"""A chat harness for `verifiers`: sends the task's prompt, runs the tools that the policy calls, and stops at the first turn
without a call. It runs in this process; the library's own harness `null` starts a Python process per episode.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.compaction import CONTEXT_OVERFLOW_MARKERS, bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

__all__ = ["ChatHarness"]  # verifiers finds a harness in its module's exports

DONE = vf.ProgramResult(exit_code=0, stdout="", stderr="")


class ChatHarnessConfig(vf.HarnessConfig):
    """No options of its own."""


class ChatHarness(vf.Harness[ChatHarnessConfig]):
    """Runs in this process and executes no code that the policy writes. Tools run on their servers."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Runs one exchange, from the prompt to a turn without a tool call or to a rejected request."""
        messages = _begin(*self.resolve_prompt(data))
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            headers = {"authorization": f"Bearer {secret}"}
            # The endpoint is local: no certificates, no proxies, and no timeout besides the episode's.
            client = httpx.AsyncClient(headers=headers, verify=False, trust_env=False, timeout=None)
            await stack.enter_async_context(client)
            while True:
                body = {"model": ctx.model, "messages": messages} | ({"tools": tools} if tools else {})
                response = await client.post(f"{endpoint}/chat/completions", json=body)
                if response.is_error:
                    full = any(marker in response.text.casefold() for marker in CONTEXT_OVERFLOW_MARKERS)
                    return DONE if full else vf.ProgramResult(exit_code=1, stdout="", stderr=response.text)
                message = response.json()["choices"][0]["message"]
                messages.append(message)
                if not message.get("tool_calls"):
                    return DONE
                for call in message["tool_calls"]:
                    messages.append(await _used(call, dispatch, connections))


def _begin(system: str | None, prompt: str | vf.Messages | None) -> list[dict[str, Any]]:
    begin = [{"role": "system", "content": system}] if system else []
    if isinstance(prompt, str):
        return [*begin, {"role": "user", "content": prompt}]
    return [*begin, *map(message_to_wire, prompt or [])]


async def _used(call: dict[str, Any], dispatch: dict[str, tuple[str, str]], connections: dict[str, Any]) -> dict[str, Any]:
    """Runs a tool call and returns the tool's message."""
    name = call["function"]["name"]
    if name in dispatch:
        content = await call_mcp(connections, dispatch, name, json.loads(call["function"]["arguments"]))
    else:
        content = f"error: unknown tool {name!r}"
    return bound_tool_message({"role": "tool", "tool_call_id": call["id"], "name": name, "content": content})
