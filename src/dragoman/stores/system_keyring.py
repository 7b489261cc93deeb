"""Reads secrets from the keyring of the system: `keyring:SERVICE/NAME`, or `keyring:NAME` for the
service `dragoman`. Needs the extra `keyring`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from dragoman.core.errors import ConfigError

SERVICE = "dragoman"
SECONDS = 20.0
"""How long a keyring may take: it may ask a person to unlock it."""


async def read_keyring(name: str, owner: str, seconds: float = SECONDS) -> str:
    """Raises `ConfigError` without the secret, and without what a backend says of it."""
    service, slash, user = name.partition("/")
    if not slash:
        service, user = SERVICE, name
    if not service or not user:
        raise ConfigError(f'{owner}: invalid reference "keyring:{name[:100]}": use SERVICE/NAME')
    try:
        async with asyncio.timeout(seconds):
            found = await _run_in_thread(lambda: _read(service, user))
    except TimeoutError:
        raise ConfigError(
            f'{owner}: the keyring did not answer within {seconds:g} s for "keyring:{name[:100]}"; '
            "unlock it, or use another kind of reference"
        ) from None
    except ImportError:
        raise ConfigError(
            f'{owner}: "keyring:{name[:100]}" needs the extra keyring: '
            "pip install 'dragoman-hub[keyring]'"
        ) from None
    except Exception as error:
        raise ConfigError(
            f'{owner}: the keyring cannot be read for "keyring:{name[:100]}": '
            f"{type(error).__name__}; see: keyring --list-backends"
        ) from None
    if found is None:
        raise ConfigError(
            f'{owner}: the keyring has no "{user[:100]}" of service "{service[:100]}"; store it '
            f"with: keyring set {service[:100]} {user[:100]}"
        )
    return found


def _read(service: str, user: str) -> str | None:
    import keyring  # an extra

    return keyring.get_password(service, user)


async def _run_in_thread(work: Callable[[], str | None]) -> str | None:
    """Runs `work` in a thread that does not keep the hub from ending if it hangs."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str | None] = loop.create_future()

    def run() -> None:
        try:
            result, problem = work(), None
        except BaseException as error:
            result, problem = None, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_settle, done, result, problem)

    threading.Thread(target=run, name="keyring", daemon=True).start()
    return await done


def _settle(
    done: asyncio.Future[str | None], result: str | None, problem: BaseException | None
) -> None:
    if done.done():
        return
    if problem is None:
        done.set_result(result)
    elif isinstance(problem, Exception):
        done.set_exception(problem)
    else:
        done.set_exception(RuntimeError(type(problem).__name__))
