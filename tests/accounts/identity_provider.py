"""Identity providers for the tests of single sign-on: an OpenID Connect one that really answers on a port, and what a
SAML one would post."""

import base64
import datetime
import hashlib
import json
import secrets
import threading
import zlib
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit
from xml.etree import ElementTree

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from onelogin.saml2.constants import OneLogin_Saml2_Constants
from onelogin.saml2.utils import OneLogin_Saml2_Utils

CLIENT_ID, CLIENT_SECRET = "yoco", "known to both"


@cache
def private_key(number: int) -> rsa.RSAPrivateKey:
    """Making one takes a while: the same number is the same key for all tests."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass
class OpenIDProvider:
    """Signs in whoever `claims` describes, without asking. Answers on loopback until `close`."""

    claims: dict[str, object] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.key = private_key(0)
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                asked = {name: values[0] for name, values in parse_qs(url.query).items()}
                match url.path:
                    case "/.well-known/openid-configuration":
                        self.answer(provider.configuration())
                    case "/jwks":
                        self.answer(provider.jwks())
                    case "/userinfo":
                        known = self.headers["Authorization"] == "Bearer for-userinfo"
                        self.answer(provider.claims if known else {}, 200 if known else 401)
                    case "/authorize":
                        self.send_response(302)
                        self.send_header("Location", provider.authorize(asked))
                        self.end_headers()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self.answer(*provider.token({name: values[0] for name, values in parse_qs(body).items()}))

            def answer(self, body: dict[str, object], status: int = 200) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def configuration(self) -> dict[str, object]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "jwks_uri": f"{self.issuer}/jwks",
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        }

    def jwks(self) -> dict[str, object]:
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return {"keys": [{**public, "kid": "1", "use": "sig", "alg": "RS256"}]}

    def authorize(self, asked: dict[str, str]) -> str:
        """Where the browser is sent back to, with a code for this request."""
        assert asked["client_id"] == CLIENT_ID
        assert "openid" in asked["scope"]
        code = secrets.token_urlsafe()
        self.codes[code] = asked
        return asked["redirect_uri"] + "?" + urlencode({"code": code, "state": asked["state"]})

    def token(self, sent: dict[str, str]) -> tuple[dict[str, object], int]:
        """The tokens for a code, once, to who knows the client's secret and the verifier of the request (PKCE)."""
        asked = self.codes.pop(sent["code"], None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(sent["code_verifier"].encode()).digest()).rstrip(b"=")
        if asked is None or asked["code_challenge"] != challenge.decode() or sent["client_secret"] != CLIENT_SECRET:
            return {"error": "invalid_grant"}, 400
        now = datetime.datetime.now(datetime.UTC)
        claims = {"iss": self.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + datetime.timedelta(minutes=5)}
        signed = jwt.encode({**claims, **self.claims}, self.key, algorithm="RS256", headers={"kid": "1"})
        return {"access_token": "for-userinfo", "token_type": "Bearer", "expires_in": 300, "id_token": signed}, 200


@dataclass
class SAMLProvider:
    """Signs assertions with a key of its own."""

    entity_id: str = "https://idp.globex.example/metadata"
    key_number: int = 1

    def __post_init__(self) -> None:
        key = private_key(self.key_number)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "idp.globex.example")])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
        ).sign(key, hashes.SHA256())
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM).decode()
        self.key = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()

    def answer(self, location: str, email: str) -> str:
        """The `SAMLResponse` to the request in a redirect's `location`, saying that this is `email`."""
        sent = parse_qs(urlsplit(location).query)["SAMLRequest"][0]
        request = ElementTree.fromstring(zlib.decompress(base64.b64decode(sent), -15))
        consumer, request_id = request.attrib["AssertionConsumerServiceURL"], request.attrib["ID"]
        audience = request.findtext("{urn:oasis:names:tc:SAML:2.0:assertion}Issuer")
        now = datetime.datetime.now(datetime.UTC)
        at, until = (f"{each:%Y-%m-%dT%H:%M:%SZ}" for each in (now, now + datetime.timedelta(minutes=5)))
        assertion = f"""<saml:Assertion xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion" ID="_a{secrets.token_hex(8)}"
            Version="2.0" IssueInstant="{at}"><saml:Issuer>{self.entity_id}</saml:Issuer>
            <saml:Subject><saml:NameID Format="{OneLogin_Saml2_Constants.NAMEID_EMAIL_ADDRESS}">{email}</saml:NameID>
            <saml:SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer"><saml:SubjectConfirmationData
            InResponseTo="{request_id}" NotOnOrAfter="{until}" Recipient="{consumer}"/></saml:SubjectConfirmation>
            </saml:Subject><saml:Conditions NotBefore="{at}" NotOnOrAfter="{until}"><saml:AudienceRestriction>
            <saml:Audience>{audience}</saml:Audience></saml:AudienceRestriction></saml:Conditions>
            <saml:AuthnStatement AuthnInstant="{at}" SessionIndex="_s"><saml:AuthnContext><saml:AuthnContextClassRef>
            urn:oasis:names:tc:SAML:2.0:ac:classes:Password</saml:AuthnContextClassRef></saml:AuthnContext>
            </saml:AuthnStatement><saml:AttributeStatement><saml:Attribute Name="urn:oid:2.5.4.42">
            <saml:AttributeValue>Gloria</saml:AttributeValue></saml:Attribute></saml:AttributeStatement></saml:Assertion>"""
        signed = OneLogin_Saml2_Utils.add_sign(
            assertion,
            self.key,
            self.certificate,
            sign_algorithm=OneLogin_Saml2_Constants.RSA_SHA256,
            digest_algorithm=OneLogin_Saml2_Constants.SHA256,
        ).decode()
        response = f"""<samlp:Response xmlns:samlp="urn:oasis:names:tc:SAML:2.0:protocol" ID="_r{secrets.token_hex(8)}"
            Version="2.0" IssueInstant="{at}" Destination="{consumer}" InResponseTo="{request_id}"><saml:Issuer
            xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion">{self.entity_id}</saml:Issuer><samlp:Status>
            <samlp:StatusCode Value="urn:oasis:names:tc:SAML:2.0:status:Success"/></samlp:Status>
            {signed}</samlp:Response>"""
        return base64.b64encode(response.encode()).decode()
