"""Limits how often an address may try to sign in, register a client or have a document fetched.

The limit of sign-ins counts per address and per user at that address, and a browser that the user
has signed in with before has a budget of its own: a user cannot be locked out from elsewhere, and
not behind the same proxy either.
"""

from __future__ import annotations

from time import monotonic

from dragoman.core.errors import RateLimited
from dragoman.core.rate_limiter import Budgets, Rate, find_network
from dragoman.core.structs import Struct

MAX_PLACES = 10_000


class AttemptRates(Struct, frozen=True):
    user: Rate = Rate(4, 10)
    """Sign-ins of one user from one network."""
    address: Rate = Rate(20, 60)
    """Sign-ins from one network."""
    registration: Rate = Rate(30, 60)
    """Clients registered from one network."""
    document: Rate = Rate(20, 40)
    """Metadata documents fetched for one user."""


class Attempts:
    def __init__(self, rates: AttemptRates | None = None) -> None:
        rates = rates or AttemptRates()
        self._users = Budgets("user", "", rates.user, MAX_PLACES)
        self._addresses = Budgets("address", "", rates.address, MAX_PLACES)
        self._registrations = Budgets("registration", "", rates.registration, MAX_PLACES)
        self._documents = Budgets("document", "", rates.document, MAX_PLACES)

    def take_sign_in(self, address: str, user: str, known: str = "") -> None:
        """Charges a sign-in before its password is checked; raises `RateLimited`. `known` is the id
        of a browser that the user has signed in with before."""
        network, now = find_network(address), monotonic()
        if known:
            _take(self._users, f"{user}\0{known}", now, "too many sign-ins from this browser")
            return
        _take(self._addresses, network, now, "too many sign-ins from here")
        wait = self._users.take(f"{user}\0{network}", 1, now)
        if wait:
            self._addresses.give_back(network, 1)
            _refuse("too many sign-ins of this user from here", wait)

    def take_passkey(self, address: str) -> None:
        """Charges a sign-in with a passkey, which cannot be guessed, to the address alone."""
        _take(self._addresses, find_network(address), monotonic(), "too many sign-ins from here")

    def take_registration(self, address: str) -> None:
        network = find_network(address)
        _take(self._registrations, network, monotonic(), "too many registrations from here")

    def take_document(self, user: str) -> None:
        _take(self._documents, user, monotonic(), "too many clients were looked up for you")


def _take(budgets: Budgets, key: str, now: float, what: str) -> None:
    if wait := budgets.take(key, 1, now):
        _refuse(what, wait)


def _refuse(what: str, wait: float) -> None:
    raise RateLimited(f"{what}; try again in {max(wait, 1):.0f} s", wait)
