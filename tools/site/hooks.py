"""Hooks of mkdocs: files outside docs/ join the site, and links and pictures that work on a code host work there too."""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
# Files outside docs/, and their places in the site, which has no folders for pages.
ADDED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "tools/site/api.md": "api.md",
    "tools/site/site.css": "site.css",
    **{f"lab/{path.name}": f"lab-{path.name}" for path in ROOT.glob("lab/*.md") if path.name != "log.md"},
}
SOURCES = {place: source for source, place in ADDED.items()}
FENCE = re.compile(r"(^```.*?^```$)", re.S | re.M)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
PICTURE = re.compile(r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img alt="([^"]*)" src="([^"]+)">\s*</picture>')


def on_files(files, config):
    """Adds the files from outside docs/."""
    for source, place in ADDED.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrites links and pictures outside of fenced code."""
    folder = posixpath.dirname(SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}"))

    def link(found):
        """The same link in the site; to a file that is not in it, in the repository, or only the words."""
        words, target, anchor = found[1], found[2], found[3] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        place = ADDED.get(path) or path.removeprefix("docs/")
        if files.get_file_from_path(place):
            if words in (path, posixpath.basename(path)):  # the name of a file: the page's title says more
                words = (ROOT / path).read_text().partition("\n")[0].removeprefix("# ")
            return f"[{words}]({place}{anchor})"
        return f"[{words}]({config.repo_url}/blob/main/{path}{anchor})" if config.repo_url else words

    def rewritten(text):
        return LINK.sub(link, PICTURE.sub(r"![\2](\3#only-light)\n![\2](\1#only-dark)", text))

    return "".join(part if part.startswith("```") else rewritten(part) for part in FENCE.split(markdown))


def on_post_page(output, page, config):
    """Names the theme's search for screen readers."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
