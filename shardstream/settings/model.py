"""Settings: one `shardstream.toml`, overridden by the environment, secrets from files or variables.

A setting `a.b` of the file is overridden by the variable `SHARDSTREAM_A__B`. Secrets are never
written in the file itself: it names a file or a variable that holds them.
"""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from event_token import ClockUncertainty, Flavor, KeyRange, ShardName, tiles
from event_token.errors import Retry, UsageError
from producers.options import CopySettings, ProducerOptions
from shardstream.settings.cache_section import CacheSection
from shardstream.settings.problems import describe
from topics.kafka.client import ClientConfig
from topics.kafka.topic_settings import KEEP_ALL, TopicSettings
from topics.names import check_keyspace

DEFAULT_CONFIG = "shardstream.toml"
LOCAL_CONFIG = ".local/shardstream.toml"  # of `shardstream local up`
CONFIG_VARIABLE = "SHARDSTREAM_CONFIG"
TOPIC_DEFAULTS = TopicSettings()
CLOCK_DEFAULTS = ClockUncertainty()


class _Section(BaseModel):
    # A misspelt setting that is silently left out would be a setting that loses data.
    model_config = ConfigDict(extra="forbid", frozen=True)


class TlsSection(_Section):
    """TLS to a database server: the certificate and the host name are always verified."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None


class ServerSection(_Section):
    """One server of a shard. The password is in a file or in a variable, never here."""

    host: str
    port: Annotated[int, Field(ge=1, le=65535)] = 3306
    user: str
    password_file: Path | None = None
    password_env: str | None = None
    tls: TlsSection | None = None
    # False: a primary that is never streamed from; it tells what a replica wrote itself.
    read: bool = True

    def password(self, folder: Path) -> SecretStr:
        """The password, read now; empty when the settings name none."""
        return read_secret(
            f"{self.user}@{self.host}", self.password_file, self.password_env, folder
        )


class ShardSection(_Section):
    """One shard: the family of its servers, and the servers, the preferred one first."""

    flavor: Flavor
    servers: Annotated[tuple[ServerSection, ...], Field(min_length=1)]


class VindexSection(_Section):
    """How a table's rows get their keyspace id: a Vitess vindex over a column."""

    database: str
    table: str
    column: str
    vindex: Literal["hash", "xxhash", "numeric", "binary", "unicode_loose_md5"]


class ReshardSection(_Section):
    """The account that reshards a keyspace, and the accounts that write to it, as user@host."""

    user: str
    password_file: Path | None = None
    password_env: str | None = None
    application_accounts: Annotated[tuple[str, ...], Field(min_length=1)]

    def password(self, folder: Path) -> SecretStr:
        """The password, read now; empty when the settings name none."""
        return read_secret(self.user, self.password_file, self.password_env, folder)


class SecretSource(_Section):
    """Where a secret is read from: a file or an environment variable."""

    file: Path | None = None
    env: str | None = None


class TruncateSection(_Section):
    """A mask that leaves the first characters."""

    truncate: Annotated[int, Field(ge=0)]


class RuleSection(_Section):
    """What of one table, or of those that a `/regexp/` names, reaches the log."""

    table: str
    columns: tuple[str, ...] = ()
    where: str = ""
    mask: dict[str, Literal["drop", "null", "hmac"] | TruncateSection] = {}


class FilterSection(_Section):
    """Which tables reach the log, and rules for some of them."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    hmac_key: SecretSource | None = None
    rules: tuple[RuleSection, ...] = ()


class KeyspaceSection(_Section):
    """A keyspace by its shards; the key is the shard's name, e.g. `-80`.

    `targets`: shards that a reshard fills; they serve from its switch on.
    """

    shards: Annotated[dict[str, ShardSection], Field(min_length=1)]
    targets: dict[str, ShardSection] = {}
    vindexes: tuple[VindexSection, ...] = ()
    filter: FilterSection = FilterSection()
    reshard: ReshardSection | None = None

    @property
    def all_shards(self) -> dict[str, ShardSection]:
        """The shards and the targets."""
        return {**self.targets, **self.shards}


class KafkaSection(_Section):
    """Brokers; `client` takes any librdkafka setting.

    `secrets`: those whose value is read from a file or a variable.
    """

    bootstrap_servers: str
    schema_registry_url: str | None = None
    replication_factor: int = TOPIC_DEFAULTS.replication_factor
    retention_ms: Annotated[int, Field(ge=KEEP_ALL)] = TOPIC_DEFAULTS.retention_ms
    client: dict[str, str | int | bool] = {}
    secrets: dict[str, SecretSource] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSection(ProducerOptions):
    """Settings of all producers."""

    # The types of MariaDB columns that the binlog shows as BINARY, by database.table.column.
    typed_columns: dict[str, Literal["uuid", "inet4", "inet6", "bytes"]] = field(
        default_factory=dict
    )


class ClockSection(_Section):
    """How far the clocks of the database servers may be off, in microseconds."""

    uncertainty_us: Annotated[int, Field(ge=0)] = CLOCK_DEFAULTS.uncertainty_us
    mariadb_longest_statement_us: Annotated[int, Field(ge=0)] = (
        CLOCK_DEFAULTS.mariadb_longest_statement_us
    )


class Settings(BaseSettings):
    """All settings of one installation."""

    model_config = SettingsConfigDict(
        env_prefix="SHARDSTREAM_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
    )

    kafka: KafkaSection
    keyspaces: dict[str, KeyspaceSection] = {}
    producer: ProducerSection = ProducerSection()
    copying: CopySettings = CopySettings()
    clock: ClockSection = ClockSection()
    caches: dict[str, CacheSection] = {}
    # Where the settings came from: relative paths in them start here.
    folder: Path = Path()

    def shard(self, keyspace: str, shard: str) -> ShardSection:
        """The settings of one shard; UsageError names the shards that there are."""
        shards = self.keyspace(keyspace).all_shards
        if shard not in shards:
            known = ", ".join(sorted(shards))
            message = f"keyspace {keyspace} has no shard {shard!r}; the settings name: {known}"
            raise UsageError(message)
        return shards[shard]

    def keyspace(self, keyspace: str) -> KeyspaceSection:
        """The settings of one keyspace; UsageError names those that there are."""
        if keyspace not in self.keyspaces:
            known = ", ".join(sorted(self.keyspaces)) or "none"
            message = f"unknown keyspace {keyspace!r}; the settings name: {known}"
            raise UsageError(message)
        return self.keyspaces[keyspace]

    def cache(self, name: str) -> CacheSection:
        """The settings of one cache; UsageError names those that there are."""
        if name not in self.caches:
            known = ", ".join(sorted(self.caches)) or "none"
            raise UsageError(f"unknown cache {name!r}; the settings name: {known}")
        return self.caches[name]

    def cache_url(self, name: str) -> str:
        """The URL of a cache's store with its password, read now."""
        section = self.cache(name)
        what = f"caches.{name}"
        return section.url(
            read_secret(what, section.password_file, section.password_env, self.folder)
        )

    def clock_uncertainty(self) -> ClockUncertainty:
        """How far the clocks may be off, as readers and `compare` take it."""
        return ClockUncertainty(**self.clock.model_dump())

    def kafka_client(self) -> ClientConfig:
        """The Kafka client's configuration with its secrets filled in."""
        client = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self.kafka.client.items()
        }
        for name, source in self.kafka.secrets.items():
            secret = read_secret(f"kafka.secrets.{name}", source.file, source.env, self.folder)
            client[name] = secret.get_secret_value()
        return ClientConfig({"bootstrap.servers": self.kafka.bootstrap_servers, **client})


def read_secret(what: str, file: Path | None, variable: str | None, folder: Path) -> SecretStr:
    """Read a secret from the one place that is named; empty when none is."""
    if file is not None and variable is not None:
        message = f"{what}: the secret is named twice, by a file and by a variable; keep one"
        raise UsageError(message)
    if file is not None:
        path = folder / file
        try:
            return SecretStr(path.read_text().strip())
        except OSError as error:
            message = f"{what}: cannot read the secret's file {path}: {error.strerror}"
            # It is read at each connection, and a process may have too many files open for a while.
            kind = Retry if error.errno in {errno.EMFILE, errno.ENFILE} else UsageError
            raise kind(message) from error
    if variable is not None:
        if variable not in os.environ:
            message = f"{what}: the variable {variable} that should hold the secret is not set"
            raise UsageError(message)
        return SecretStr(os.environ[variable])
    return SecretStr("")


def default_config() -> Path:
    """Return the settings file that is used when none is named.

    It is the one that SHARDSTREAM_CONFIG names, else ./shardstream.toml, else the one that
    `shardstream local up` wrote.
    """
    if named := os.environ.get(CONFIG_VARIABLE):
        return Path(named)
    path, local = Path(DEFAULT_CONFIG).resolve(), Path(LOCAL_CONFIG).resolve()
    return local if local.is_file() and not path.is_file() else path


def load_settings(config: Path | None) -> Settings:
    """Read and check everything; one UsageError lists all that is wrong.

    `config`: the file; None takes `default_config()`.
    """
    path = config or default_config()
    if path.is_dir():
        message = (
            f"{path} is a folder; --config takes a settings file, such as {path / DEFAULT_CONFIG}"
        )
        raise UsageError(message)
    if not path.is_file():
        message = (
            f"no settings file {path}; name one with --config or ${CONFIG_VARIABLE}, "
            "or run `shardstream local up`, which writes one"
        )
        raise UsageError(message)
    try:
        given: dict[str, Any] = {"folder": path.resolve().parent}
        settings = _sources(path)(**given)
    except ValidationError as error:
        problems = describe(Settings, error.errors())
        lines = "\n".join(f"  {problem}" for problem in problems)
        message = f"{path}: {len(problems)} wrong setting(s)\n{lines}"
        raise UsageError(message) from error
    except ValueError as error:  # tomllib's syntax error
        message = f"{path} is not TOML: {error}"
        raise UsageError(message) from error
    _check_names(path, settings)
    return settings


def _sources(path: Path) -> type[Settings]:
    class FileSettings(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic passes it
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - likewise
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            file_settings = TomlConfigSettingsSource(settings_cls, toml_file=path)
            return init_settings, env_settings, file_settings

    return FileSettings


def _gaps(ranges: Iterable[KeyRange]) -> list[str]:
    """Name the key ranges that none of these, which do not overlap, contains."""
    ordered = sorted(ranges, key=lambda key_range: key_range.start)
    ends = [b"", *(key_range.end for key_range in ordered)]
    starts = [*(key_range.start for key_range in ordered), b""]
    # The first start and the last end are empty where they are those of the whole keyspace.
    return [
        str(KeyRange(end, start))
        for end, start in zip(ends, starts, strict=True)
        if end.rstrip(b"\0") != start.rstrip(b"\0")
    ]


def _check_names(path: Path, settings: Settings) -> None:
    problems = []
    for keyspace, section in settings.keyspaces.items():
        try:
            check_keyspace(keyspace)
            names = {shard: ShardName.parse(shard) for shard in section.shards}
            for target in section.targets:
                ShardName.parse(target)
        except UsageError as error:
            problems.append(f"  {error}")
            continue
        ranges = {shard: name.key_range for shard, name in names.items()}
        overlapping = [
            f"  {keyspace}: shards {one} and {other} overlap"
            for one, other in combinations(ranges, 2)
            if ranges[one].overlaps(ranges[other])
        ]
        problems += overlapping
        if not overlapping and not tiles(ranges.values(), KeyRange.parse("-")):
            gaps = ", ".join(_gaps(ranges.values()))
            problems.append(f"  {keyspace}: no shard has the keys {gaps}")
    for name, cache in settings.caches.items():
        problems += [f"  {problem}" for problem in cache.problems(name, settings.keyspaces)]
    if problems:
        raise UsageError("\n".join([f"{path}: {len(problems)} wrong setting(s)", *problems]))
