"""The authorization endpoint: a user signs in and consents to a client, which gets a code.

Nothing is redirected to a client without a click of the user on a page of the hub in this browser
session: a link that an attacker prepares leads to the sign-in page or the consent page.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from dragoman.core.users import BrowserSession, UserGrants
from dragoman.oauth.authority import pages
from dragoman.oauth.authority.attempts import Attempts
from dragoman.oauth.authority.client_documents import ClientDocuments, is_document_url
from dragoman.oauth.authority.clients import (
    InvalidClient,
    OAuthClient,
    describe_redirect,
    explain_redirect,
    find_form_source,
    is_web_redirect,
)
from dragoman.oauth.authority.config import AuthServerSettings
from dragoman.oauth.authority.protocol import (
    AuthorizationRequest,
    CheckedRequest,
    FindBase,
    OAuthError,
    build_redirect,
    check_authorization_request,
    parse_authorization_request,
    parse_form,
    reply_redirect,
)
from dragoman.oauth.authority.sign_in import STALE, Browsers, SignIn, reply_page
from dragoman.wire.http import HttpRequest


class AuthorizationEndpoint:
    def __init__(
        self,
        settings: AuthServerSettings,
        grants: UserGrants,
        browsers: Browsers,
        sign_in: SignIn,
        documents: ClientDocuments,
        attempts: Attempts,
        find_base: FindBase,
        find_registered: Callable[[str], OAuthClient | None],
    ) -> None:
        self._settings = settings
        self._grants = grants
        self._browsers = browsers
        self._sign_in = sign_in
        self._documents = documents
        self._attempts = attempts
        self._find_base = find_base
        self._find_registered = find_registered

    async def serve(self, request: HttpRequest) -> None:
        asked = parse_authorization_request(request.query)
        session = self._browsers.find(request)
        if session is None:
            return self._sign_in.show(
                request, f"/oauth/authorize?{asked.query}", client=self._name_client(asked)
            )
        client = await self._find_client(asked, session)
        base = self._find_base()
        try:
            checked = check_authorization_request(asked, base, session.user.scopes)
        except OAuthError as error:
            # A page and not a redirect at once: the hub would be an open redirector (RFC 9700,
            # section 4.11.2).
            told = {"error": error.error, "error_description": str(error)}
            back = build_redirect(asked, base, **told)
            leads_to = describe_redirect(asked.redirect_uri)
            page = pages.render_problem(400, f"The app's request: {error}.", back, leads_to)
            return reply_page(request, page)
        if request.method == "POST":
            return self._decide(request, session, client, asked, checked)
        if self._is_remembered(session, client, asked, checked):
            return self._issue(request, session, client, asked, checked)
        return self._ask(request, session, client, asked, checked)

    def _name_client(self, asked: AuthorizationRequest) -> str:
        """Names the client on the sign-in page. A document is fetched for signed-in users only."""
        if is_document_url(asked.client_id):
            return urlsplit(asked.client_id).hostname or ""
        client = self._find_registered(asked.client_id)
        return client.name if client is not None else ""

    async def _find_client(
        self, asked: AuthorizationRequest, session: BrowserSession
    ) -> OAuthClient:
        """Finds the client, which may use the redirect URI. Raises `OAuthError`; its message goes
        to a page, never to the redirect URI."""
        client: OAuthClient | None
        if is_document_url(asked.client_id) and self._settings.allow_client_documents:
            try:
                client = await self._documents.find(
                    asked.client_id, lambda: self._attempts.take_document(session.user.name)
                )
            except InvalidClient as problem:
                raise OAuthError(
                    "invalid_client", f"the app cannot be identified: {problem}"
                ) from None
        else:
            client = self._find_registered(asked.client_id)
        if client is None:
            raise OAuthError(
                "invalid_client",
                "the app is not known here any more; remove the connection there and add it again",
            )
        if not client.allows(asked.redirect_uri):
            raise OAuthError(
                "invalid_request", "the app asks to send you to an address that it did not register"
            )
        # The setting may have changed since the client registered.
        if why := explain_redirect(asked.redirect_uri, self._settings):
            raise OAuthError("invalid_request", why)
        return client

    # --- consent ---------------------------------------------------------------------------------

    def _is_remembered(
        self,
        session: BrowserSession,
        client: OAuthClient,
        asked: AuthorizationRequest,
        checked: CheckedRequest,
    ) -> bool:
        """Whether the user consented to the same in this browser session. Another program on the
        device could receive what goes there, so that each time needs a click (RFC 8252, 8.6)."""
        return is_web_redirect(asked.redirect_uri) and self._grants.has_consent(
            session.record, client.id, asked.redirect_uri, checked.scopes, checked.resource
        )

    def _ask(
        self,
        request: HttpRequest,
        session: BrowserSession,
        client: OAuthClient,
        asked: AuthorizationRequest,
        checked: CheckedRequest,
    ) -> None:
        view = pages.ConsentView(
            action=f"/oauth/authorize?{asked.query}",
            form_token=self._browsers.build_form_token(session.id, f"consent\0{asked.query}"),
            sign_out_token=self._browsers.build_form_token(session.id, "account"),
            user=session.user.name,
            client=client.name,
            vouched_by=client.host,
            leads_to=describe_redirect(asked.redirect_uri),
            form_source=find_form_source(asked.redirect_uri),
            scopes=checked.scopes,
            is_local=not is_web_redirect(asked.redirect_uri),
        )
        reply_page(request, pages.render_consent(view))

    def _decide(
        self,
        request: HttpRequest,
        session: BrowserSession,
        client: OAuthClient,
        asked: AuthorizationRequest,
        checked: CheckedRequest,
    ) -> None:
        """Handles the consent form. Its token is that of this session and this very request."""
        form = parse_form(request)
        purpose = f"consent\0{asked.query}"
        if not self._browsers.is_form_token(form.get("token", ""), session.id, purpose):
            raise OAuthError("invalid_request", STALE, 403)
        if form.get("decision") != "allow":
            told = {"error": "access_denied", "error_description": "the user did not consent"}
            return reply_redirect(request, build_redirect(asked, self._find_base(), **told))
        self._grants.remember_consent(
            session.record, client.id, asked.redirect_uri, checked.scopes, checked.resource
        )
        return self._issue(request, session, client, asked, checked)

    def _issue(
        self,
        request: HttpRequest,
        session: BrowserSession,
        client: OAuthClient,
        asked: AuthorizationRequest,
        checked: CheckedRequest,
    ) -> None:
        code = self._grants.open_grant(
            session.user.name,
            client.id,
            client.name,
            checked.scopes,
            checked.resource,
            asked.redirect_uri,
            checked.challenge,
        )
        reply_redirect(request, build_redirect(asked, self._find_base(), code=code))
