"""torchvision's ImageNet weights, from torch's cache or the network, with short timeouts."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import Future
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import torch

from peerdg.errors import ConfigError, DamagedError
from peerdg.files import replace_atomically, sha256
from peerdg.models.names import BACKBONES, check_backbone

CONNECT_SECONDS = 4.0  # until a server has answered, name resolution included
STALL_SECONDS = 30.0  # without a single byte


def imagenet_file(backbone: str) -> Path:
    """The file with torchvision's weights for `backbone`, verified by the hash in its name.

    Raises:
        ConfigError: If there are none, or they are neither cached nor downloadable.
        DamagedError: If the file does not match its checksum.
    """
    from peerdg._vision import models  # late, as in `backbones`

    check_backbone(backbone, "imagenet")
    url = models.get_model_weights(backbone)[BACKBONES[backbone].imagenet].url
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlsplit(url).path).name
    if not path.is_file():
        download(url, path)
    elif not sha256(path, follow_links=True).startswith(_hash_in(path)):
        raise DamagedError(
            f"{path} is damaged: its content does not have the hash in its name.",
            hint="Remove it, and it is downloaded again; or place a good copy there.",
        )
    return path


def download(url: str, path: Path) -> None:
    """Fetch `url` into `path`, which appears whole and verified or not at all."""
    place = f"place the file at {path}"
    with reach(url, place=place) as response, replace_atomically(path) as temporary:
        digest = hashlib.sha256()
        with temporary.open("wb") as file:
            for chunk in _chunks(response, url, place):
                digest.update(chunk)
                file.write(chunk)
        if not digest.hexdigest().startswith(_hash_in(path)):
            raise DamagedError(
                f"The download of {url} was damaged on the way.",
                hint=f"Try again, or {place}.",
            )


def reach(url: str, *, place: str) -> HTTPResponse:
    """Open a connection to `url` within a few seconds.

    Args:
        url: What to read.
        place: What a person can do instead, for the error's hint.

    Raises:
        ConfigError: If the server does not respond in time.
    """
    answer: Future[HTTPResponse] = Future()

    def connect() -> None:
        try:
            answer.set_result(urlopen(url, timeout=STALL_SECONDS))  # noqa: S310  (https, from torchvision)
        except (OSError, HTTPException) as error:
            if isinstance(error, HTTPError):
                error.close()  # the server's page about the error
            answer.set_exception(error)

    # In a thread of its own, because the resolution of names has no time limit.
    Thread(target=connect, daemon=True).start()
    try:
        return answer.result(timeout=CONNECT_SECONDS)
    except (OSError, HTTPException) as error:  # the time limit is an OSError, too
        raise _unreachable(url, place, error) from error


def _chunks(response: HTTPResponse, url: str, place: str) -> Iterator[bytes]:
    try:
        while chunk := response.read(2**20):
            yield chunk
    except (OSError, HTTPException) as error:
        raise _unreachable(url, place, error) from error


def _unreachable(url: str, place: str, error: Exception) -> ConfigError:
    reason = str(error) or f"no answer within {CONNECT_SECONDS:.0f} seconds"
    return ConfigError(
        f"The weights cannot be downloaded from {url}: {reason}.",
        hint=f"Download them elsewhere and {place}, or use --weights none.",
    )


def _hash_in(path: Path) -> str:
    """`b8a52dc0` of `squeezenet1_1-b8a52dc0.pth`."""
    return path.stem.rpartition("-")[2]
