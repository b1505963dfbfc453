import pytest

from tests.prometheus_server import promtool
from tests.repository import ROOT

pytestmark = pytest.mark.full

FOLDER = ROOT / "docker" / "prometheus"


@pytest.mark.usefixtures("real_servers")
def test_the_alerts_fire_when_they_should() -> None:
    """Prometheus' own tool takes the rules and the configuration, and runs the tests of rules."""
    for arguments in (
        ("test", "rules", "rules.test.yml"),
        ("check", "config", "--lint-fatal", "prometheus.yml"),
    ):
        *verbs, name = arguments
        done = promtool(*verbs, str(FOLDER / name))

        assert done.returncode == 0, done.stdout + done.stderr
