"""The worlds of the OAuth tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.oauth.authlib_authority import AuthlibAuthority
from tests.oauth.world import World, build_world


@pytest.fixture(params=["sdk", "authlib"])
async def world(request: pytest.FixtureRequest, short_tmp: Path) -> AsyncIterator[World]:
    """Of the MCP SDK's authorization server, and of authlib's."""
    async with build_world(short_tmp, request.param) as made:
        yield made


@pytest.fixture
async def authlib_world(short_tmp: Path) -> AsyncIterator[World]:
    async with build_world(short_tmp) as made:
        yield made


@pytest.fixture
def authority(authlib_world: World) -> AuthlibAuthority:
    assert isinstance(authlib_world.authority, AuthlibAuthority)
    return authlib_world.authority
