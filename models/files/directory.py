"""The directory of a model, and where its files are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from decoding.models.files.errors import ModelFileError, clipped, naming_option, short

HOW = "only files inside it are read unless trust_paths=True (--trust-paths) is passed"


@dataclass(frozen=True)
class Directory:
    """The directory that holds all files of a model, wherever links and names in its files lead.

    trust_paths: files elsewhere may be read too. The Hugging Face cache keeps a model's files in
    `snapshots/<revision>` as links into `blobs` beside `snapshots`: such links may always be
    followed.
    """

    path: Path
    trust_paths: bool = False

    @classmethod
    def of(cls, given: Path | Directory) -> Directory:
        return given if isinstance(given, Directory) else cls(given)

    def file(self, name: str) -> Path:
        """The path of the file `name`, which need not be there. Raises ModelFileError where that is
        no name, or the name of a file elsewhere."""
        relative = os.path.normpath(name)
        path = self.path / relative
        try:
            os.fsencode(relative)
            target = path.resolve()
            roots = [root.resolve() for root in self._roots()]
        except (OSError, RuntimeError, ValueError) as error:
            raise ModelFileError(
                f"{self.path}: {short(name)} is no name of a file: {short(error)}"
            ) from error
        inside = not leads_out(relative) and any(map(target.is_relative_to, roots))
        if not (inside or self.trust_paths):
            raise ModelFileError(
                f"{self.path}: {short(name)} leads out of the directory, and {HOW}"
            )
        return path

    def find(self, name: str) -> Path | None:
        """The path of the file `name`, None where there is none; raises as file()."""
        path = self.file(name)
        return path if is_there(path) else None

    def required(self, name: str, needs: str) -> Path:
        """The same; raises FileNotFoundError that ends in `needs` where there is none."""
        path = self.file(name)
        if not is_there(path):
            raise FileNotFoundError(f"{path} is missing: {needs}")
        return path

    def named(self, name: object, option: str) -> Path:
        """The path of a file that an option of a configuration names, which need not be there.

        Toolkits store the paths of the machine that trained: where there is no such file, one of
        that name is taken to lie in the directory.
        """
        if (
            not isinstance(name, str)
            or "\0" in name
            or (last := os.path.basename(os.path.normpath(name))) in ("", os.curdir, os.pardir)
        ):
            raise ModelFileError(
                f"{self.path}: {option} must be the name of a file, got {short(name)}"
            )
        with naming_option(option):
            if not leads_out(os.path.normpath(name)) or self.trust_paths:
                path = self.file(name)
                if is_there(path):
                    return path
            return self.file(last)

    def required_named(self, name: object, option: str, needs: str) -> Path:
        """The same; raises FileNotFoundError that ends in `needs` where there is none."""
        path = self.named(name, option)
        with naming_option(option):
            there = is_there(path)
        if not there:
            where = "" if path.name == name else f"; {short(name)} is elsewhere, and {HOW}"
            raise FileNotFoundError(f"{path} is missing: {needs}{where}")
        return path

    def name_of(self, path: Path) -> str:
        """The name of a file, from the directory on; the last one of a file elsewhere."""
        relative = os.path.relpath(path, self.path)
        return path.name if leads_out(relative) else relative

    def _roots(self) -> list[Path]:
        """The directory, and that of the files which the Hugging Face cache links to."""
        place = self.path.resolve()
        snapshots = [folder for folder in place.parents if folder.name == "snapshots"]
        return [place, *(folder.parent / "blobs" for folder in snapshots[:1])]


def leads_out(relative: str) -> bool:
    """relative: a normal path."""
    return os.path.isabs(relative) or relative.split(os.sep)[0] == os.pardir


def is_there(path: Path) -> bool:
    """Whether there is anything at a path, of whatever kind. Raises ModelFileError where the system
    does not say."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{clipped(str(path))} cannot be opened: {short(error)}") from error
    return True
