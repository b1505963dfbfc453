"""A broker that can also be reached through a proxy, and over TLS."""

from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.local_server import HOST, free_ports
from tests.certificates import Certificates
from tests.faults.proxy import Proxy
from tests.waiting import WAIT_S

REAUTH_MS = 2_000


class ListeningCluster(KafkaCluster):
    """One broker with four listeners more.

    `proxied`: bootstrap servers whose connections all lead through `proxy`. `secured`: over TLS,
    with a certificate of `certificates`. `for_tokens`: by SASL/OAUTHBEARER with tokens that nobody
    signed, which the broker asks for again when they end. `for_passwords`: by SASL/SCRAM-SHA-256,
    whose passwords it asks for again after REAUTH_MS.
    """

    def __init__(self, folder: Path) -> None:
        behind, self._secure_port, self._token_port, self._password_port = free_ports(4)
        self._behind = behind
        self.proxy = Proxy(behind, framed=True)
        self.proxied = f"{HOST}:{self.proxy.port}"
        self.secured = f"{HOST}:{self._secure_port}"
        self.for_tokens = f"{HOST}:{self._token_port}"
        self.for_passwords = f"{HOST}:{self._password_port}"
        (folder / "tls").mkdir(parents=True)
        self.certificates = Certificates(folder / "tls", HOST)
        super().__init__(folder, die_with_parent=True)

    def _configure(self) -> None:
        super()._configure()
        [broker] = self.brokers
        settings = broker.folder / "server.properties"
        lines = dict(line.split("=", 1) for line in settings.read_text().splitlines())
        lines["listeners"] += f",PROXIED://{HOST}:{self._behind},SECURED://{self.secured}"
        logins = f",TOKENS://{self.for_tokens},PASSWORDS://{self.for_passwords}"
        lines["listeners"] += logins
        lines["advertised.listeners"] += f",PROXIED://{self.proxied},SECURED://{self.secured}"
        lines["advertised.listeners"] += logins
        protocols = ",PROXIED:PLAINTEXT,SECURED:SSL,TOKENS:SASL_PLAINTEXT,PASSWORDS:SASL_PLAINTEXT"
        lines["listener.security.protocol.map"] += protocols
        lines["listener.name.tokens.sasl.enabled.mechanisms"] = "OAUTHBEARER"
        lines["listener.name.tokens.oauthbearer.sasl.jaas.config"] = (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";'
        )
        # A connection ends with its token, at the latest.
        lines["listener.name.tokens.oauthbearer.connections.max.reauth.ms"] = "60000"
        lines["listener.name.passwords.sasl.enabled.mechanisms"] = "SCRAM-SHA-256"
        lines["listener.name.passwords.scram-sha-256.sasl.jaas.config"] = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        )
        lines["listener.name.passwords.scram-sha-256.connections.max.reauth.ms"] = str(REAUTH_MS)
        both = Path(self.certificates.folder) / "keystore.pem"
        both.write_text(
            Path(self.certificates.key).read_text() + Path(self.certificates.cert).read_text()
        )
        lines["listener.name.secured.ssl.keystore.type"] = "PEM"
        lines["listener.name.secured.ssl.keystore.location"] = str(both)
        settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def set_password(self, user: str, password: str) -> None:
        """Give a user of `for_passwords` a password, from the next login on."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        wanted = UserScramCredentialUpsertion(user, info, password.encode())
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.alter_user_scram_credentials([wanted])[user].result(WAIT_S)
