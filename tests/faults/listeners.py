"""A broker that can also be reached through a proxy, and over TLS."""

from pathlib import Path

from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.ports import HOST, free_ports
from tests.certificates import Certificates
from tests.faults.proxy import Proxy


class ListeningCluster(KafkaCluster):
    """One broker with two listeners more.

    `proxied`: bootstrap servers whose connections all lead through `proxy`. `secured`: over TLS,
    with a certificate of `certificates`.
    """

    def __init__(self, folder: Path) -> None:
        behind, self._secure_port = free_ports(2)
        self._behind = behind
        self.proxy = Proxy(behind, framed=True)
        self.proxied = f"{HOST}:{self.proxy.port}"
        self.secured = f"{HOST}:{self._secure_port}"
        (folder / "tls").mkdir()
        self.certificates = Certificates(folder / "tls", HOST)
        super().__init__(folder, die_with_parent=True)

    def _configure(self) -> None:
        super()._configure()
        [broker] = self.brokers
        settings = broker.folder / "server.properties"
        lines = dict(line.split("=", 1) for line in settings.read_text().splitlines())
        lines["listeners"] += f",PROXIED://{HOST}:{self._behind},SECURED://{self.secured}"
        lines["advertised.listeners"] += f",PROXIED://{self.proxied},SECURED://{self.secured}"
        lines["listener.security.protocol.map"] += ",PROXIED:PLAINTEXT,SECURED:SSL"
        both = Path(self.certificates.folder) / "keystore.pem"
        both.write_text(
            Path(self.certificates.key).read_text() + Path(self.certificates.cert).read_text()
        )
        lines["listener.name.secured.ssl.keystore.type"] = "PEM"
        lines["listener.name.secured.ssl.keystore.location"] = str(both)
        settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
