"""The HTTP headers that the hub sends as an A2A peer, whichever side it is on."""

from dragoman import __version__

USER_AGENT = f"Dragoman/{__version__} A2A"
