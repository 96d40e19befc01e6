"""What gspo.ArtBackend refuses before anything is loaded. What it does is in test_art.py, which needs ART."""

from importlib import metadata

import pytest

import gspo

REMEDY = {"openpipe-art": "openpipe-art>=0.5.17,<0.5.19", "openai": "openai>=2.14,<3"}


@pytest.fixture
def versions(monkeypatch):
    """Sets the versions of ART and of openai; None: it is not there."""

    def changed(art="0.5.18", openai="2.14.0"):
        given = {"openpipe-art": art, "openai": openai}

        def version(name):
            if given[name] is None:
                raise metadata.PackageNotFoundError(name)
            return given[name]

        monkeypatch.setattr(metadata, "version", version)

    return changed


@pytest.mark.parametrize(
    ("package", "number"),
    [
        ("openpipe-art", "0.5.16"), ("openpipe-art", "0.5.19"), ("openpipe-art", "1.0.0rc1"), ("openai", "2.13.9"),
        ("openai", "3.54.0"),
    ],
)  # fmt: skip
def test_a_version_that_does_not_work(versions, package, number):
    versions(**{package.removeprefix("openpipe-"): number})
    with pytest.raises(ValueError, match=rf"does not work with {package} {number}: pip install '{REMEDY[package]}'"):
        gspo.ArtBackend()


@pytest.mark.parametrize("package", REMEDY)
def test_a_package_that_is_not_there(versions, package):
    versions(**{package.removeprefix("openpipe-"): None})
    with pytest.raises(ValueError, match=rf"ArtBackend needs {package}: pip install '{REMEDY[package]}'"):
        gspo.ArtBackend()


@pytest.mark.parametrize("key", ["model.path", "log.dir", "serve.name"])
def test_what_arts_model_gives(versions, key):
    versions()
    section, name = key.split(".")
    with pytest.raises(ValueError, match=rf"{key} = 'x': ART's model gives it"):
        gspo.ArtBackend(**{section: {name: "x"}})
