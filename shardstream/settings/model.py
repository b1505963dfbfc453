"""Settings: one `shardstream.toml`, overridden by the environment, secrets from files or variables.

A setting `a.b` of the file is overridden by the variable `SHARDSTREAM_A__B`. Secrets are never
written in the file itself: it names a file or a variable that holds them.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from caching.client.options import CacheOptions
from caching.protocol import CacheLayout
from caching.stores.opening import store_kind
from credentials.secret import Secret
from databases.server import Platform
from event_token import ClockUncertainty, Flavor, KeyRange, ShardName, tiles
from event_token.errors import UsageError
from producers.clock import ChronyBound, ClockSource, ConstantBound
from producers.filters.rules import KEY_ID_CHARS_MAX
from producers.settings import CopySettings, ProducerOptions
from shardstream.settings.problems import describe
from topics.kafka.client import (
    MESSAGE_BYTES_MAX,
    OAUTH_COMMAND,
    RECORD_BYTES_DEFAULT,
    RECORD_BYTES_OPTION,
    ClientConfig,
)
from topics.kafka.topic_settings import KEEP_ALL, TopicSettings
from topics.names import check_keyspace
from topics.records.table_shape import SchemaIds
from topics.schemas import open_schema_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSection(CacheOptions):
    """One cache: the keyspace whose rows it holds, its store, and its options.

    `store` is a URL without a password; that is in a file or in a variable. `keys` is the KeyMap,
    as module:object.
    """

    keyspace: str
    store: str
    keys: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    password_file: Path | None = None
    password_env: str | None = None
    password_command: tuple[str, ...] = ()
    password_valid_s: Annotated[float, Field(ge=0)] = 0.0

    @property
    def has_password(self) -> bool:
        """Whether the store asks for one."""
        return bool(self.password_file or self.password_env or self.password_command)

    def problems(self, name: str, keyspaces: Iterable[str]) -> list[str]:
        """Return the problems that types and bounds do not find, one line each."""
        found = []
        try:
            CacheLayout(name, self.buckets)
            for key_range in self.key_ranges:
                ShardName.parse(key_range)
            kind = store_kind(self.store)
            if self.has_password and not kind.takes_password:
                found.append("password_*: this kind of store has no passwords")
            if kind.is_in_process and self.key_ranges != ("-",):
                found.append("key_ranges: a store in memory has one invalidator, of all keys (-)")
        except UsageError as error:
            found.append(str(error))
        if self.keyspace not in keyspaces:
            known = ", ".join(sorted(keyspaces)) or "none"
            found.append(f"unknown keyspace {self.keyspace!r}; the settings name: {known}")
        url = urlsplit(self.store)
        if url.password is not None or "password" in parse_qs(url.query):
            found.append(
                "store: the URL contains a password; use password_file, password_env or "
                "password_command"
            )
        return [f"caches.{name}: {problem}" for problem in found]


DEFAULT_CONFIG = "shardstream.toml"
LOCAL_CONFIG = ".local/shardstream.toml"  # of `shardstream local up`
CONFIG_VARIABLE = "SHARDSTREAM_CONFIG"
TOPIC_DEFAULTS = TopicSettings()
CLOCK_DEFAULTS = ClockUncertainty()


class _Section(BaseModel):
    """A section of the settings file."""

    # A misspelt setting that is silently ignored may lose data.
    model_config = ConfigDict(extra="forbid", frozen=True)


class SecretSource(_Section):
    """Where a secret is read from: a file, an environment variable, or a command's output."""

    file: Path | None = None
    env: str | None = None
    command: tuple[str, ...] = ()
    valid_s: Annotated[float, Field(ge=0)] = 0.0

    def secret(self, what: str, folder: Path) -> Secret:
        """The secret; a relative path starts at `folder`."""
        file = None if self.file is None else folder / self.file
        return Secret(what, file, self.env, self.command, self.valid_s)


class PasswordSection(_Section):
    """Where a password is: one of the first three, or none for an account without a password."""

    password_file: Path | None = None
    password_env: str | None = None
    password_command: tuple[str, ...] = ()
    password_valid_s: Annotated[float, Field(ge=0)] = 0.0

    def secret(self, what: str, folder: Path) -> Secret:
        """The password; a relative path starts at `folder`."""
        source = SecretSource(
            file=self.password_file,
            env=self.password_env,
            command=self.password_command,
            valid_s=self.password_valid_s,
        )
        return source.secret(what, folder)


class TlsSection(_Section):
    """TLS to a database server: the certificate and the host name are always verified."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None


class ServerSection(PasswordSection):
    """One server of a shard. The password is in a file, a variable or a command, never here."""

    host: str
    port: Annotated[int, Field(ge=1, le=65535)] = 3306
    user: str
    tls: TlsSection | None = None
    # False: a primary that is never streamed from, and shows which writes a replica made itself.
    read: bool = True

    def password(self, folder: Path) -> Secret:
        """The password of the account."""
        return self.secret(f"{self.user}@{self.host}", folder)


class ShardSection(_Section):
    """One shard: the family of its servers, and the servers, the preferred one first.

    `platform`: who runs them, where that is recognised wrongly.
    """

    flavor: Flavor
    platform: Platform | None = None
    servers: Annotated[tuple[ServerSection, ...], Field(min_length=1)]


class VindexSection(_Section):
    """How a table's rows get their keyspace id: a Vitess vindex over a column."""

    database: str
    table: str
    column: str
    vindex: Literal["hash", "xxhash", "numeric", "binary", "unicode_loose_md5"]


class ReshardSection(PasswordSection):
    """The account that reshards a keyspace, and the accounts that write to it, as user@host."""

    user: str
    application_accounts: Annotated[tuple[str, ...], Field(min_length=1)]

    def password(self, folder: Path) -> Secret:
        """The password of the account."""
        return self.secret(self.user, folder)


class TruncateSection(_Section):
    """A mask that leaves the first characters."""

    truncate: Annotated[int, Field(ge=0)]


class RuleSection(_Section):
    """Which columns and rows of a table, or of tables that match `/regexp/`, reach the log."""

    table: str
    columns: tuple[str, ...] = ()
    where: str = ""
    mask: dict[str, Literal["drop", "null", "hmac"] | TruncateSection] = {}


class HmacKeySource(SecretSource):
    """Where the key of hmac masks is, and its id, which stands before each value made with it."""

    id: Annotated[str, Field(pattern=rf"^[A-Za-z0-9_-]{{1,{KEY_ID_CHARS_MAX}}}$")] = ""


class FilterSection(_Section):
    """Which tables reach the log, and rules for some of them."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    hmac_key: HmacKeySource | None = None
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


class OAuthSection(_Section):
    """What gives tokens for SASL/OAUTHBEARER: a command that prints them, or a provider."""

    command: tuple[str, ...] = ()
    provider: Literal["aws-msk-iam"] | None = None
    region: str = ""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if bool(self.command) == (self.provider is not None):
            raise ValueError("give a command that prints tokens, or a provider: one of the two")
        if (self.provider is not None) != bool(self.region):
            raise ValueError("a provider goes with the region of the brokers, and only a provider")
        return self

    @property
    def source(self) -> tuple[str, ...]:
        """The command, or the provider with its region in the place of one."""
        return self.command or (str(self.provider), self.region)


class KafkaSection(_Section):
    """Brokers; `client` takes any librdkafka setting.

    `secrets`: those whose value is read from a file or a variable.
    """

    bootstrap_servers: str
    schema_registry_url: str | None = None
    replication_factor: int = TOPIC_DEFAULTS.replication_factor
    retention_ms: Annotated[int, Field(ge=KEEP_ALL)] = TOPIC_DEFAULTS.retention_ms
    client: dict[str, str | int | bool] = {}
    oauth: OAuthSection | None = None
    secrets: dict[str, SecretSource] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSection(ProducerOptions):
    """Settings of all producers."""

    # The types of MariaDB columns that the binlog shows as BINARY, by database.table.column.
    typed_columns: dict[str, Literal["uuid", "inet4", "inet6", "bytes"]] = field(
        default_factory=dict
    )


class ReaderSection(_Section):
    """Limits of readers, which producers keep to."""

    record_bytes_max: Annotated[int, Field(ge=MESSAGE_BYTES_MAX)] = RECORD_BYTES_DEFAULT


class ClockSection(_Section):
    """How far clocks may be off, in microseconds: of database servers and of our own hosts.

    `source`: where a producer has it from for the clock of its host.
    """

    source: Literal["constant", "chrony"] = "constant"
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
    reader: ReaderSection = ReaderSection()
    clock: ClockSection = ClockSection()
    caches: dict[str, CacheSection] = {}
    # Where the settings came from: relative paths in them start here.
    folder: Path = Path()

    def shard(self, keyspace: str, shard: str) -> ShardSection:
        """The settings of one shard; UsageError lists the shards that exist."""
        shards = self.keyspace(keyspace).all_shards
        if shard not in shards:
            known = ", ".join(sorted(shards))
            raise UsageError(
                f"keyspace {keyspace} has no shard {shard!r}; the settings name: {known}"
            )
        return shards[shard]

    def keyspace(self, keyspace: str) -> KeyspaceSection:
        """The settings of one keyspace; UsageError lists those that exist."""
        if keyspace not in self.keyspaces:
            known = ", ".join(sorted(self.keyspaces)) or "none"
            raise UsageError(f"unknown keyspace {keyspace!r}; the settings name: {known}")
        return self.keyspaces[keyspace]

    def keyspaces_named(self, keyspace: str | None) -> list[str]:
        """The names of one keyspace, or of all; UsageError when the settings have none of them."""
        if keyspace is not None:
            self.keyspace(keyspace)
            return [keyspace]
        if not self.keyspaces:
            raise UsageError("the settings name no keyspace")
        return sorted(self.keyspaces)

    def cache(self, name: str) -> CacheSection:
        """The settings of one cache; UsageError lists those that exist."""
        if name not in self.caches:
            known = ", ".join(sorted(self.caches)) or "none"
            raise UsageError(f"unknown cache {name!r}; the settings name: {known}")
        return self.caches[name]

    def cache_password(self, name: str) -> Secret | None:
        """The password of a cache's store, None if it asks for none.

        It is read now, so that a source that is wrong is found before anything starts.
        """
        section = self.cache(name)
        if not section.has_password:
            return None
        source = SecretSource(
            file=section.password_file,
            env=section.password_env,
            command=section.password_command,
            valid_s=section.password_valid_s,
        )
        secret = source.secret(f"caches.{name}", self.folder)
        secret.read()
        return secret

    def clock_uncertainty(self) -> ClockUncertainty:
        """How far the clocks may be off, as readers and `compare` take it."""
        return ClockUncertainty(**self.clock.model_dump(exclude={"source"}))

    def host_clock(self) -> ClockSource:
        """How far the clock of this host may be off: one source for all shards of a process."""
        return self._host_clock

    @cached_property
    def _host_clock(self) -> ClockSource:
        match self.clock.source:
            case "constant":
                return ConstantBound(self.clock.uncertainty_us)
            case "chrony":
                return ChronyBound()

    def schema_ids(self) -> SchemaIds:
        """The schema ids of the logs: from the registry if one is set, else from their topic."""
        return open_schema_ids(self.kafka_client(), self.kafka.schema_registry_url)

    def kafka_client(self) -> ClientConfig:
        """The Kafka client's configuration. UsageError if a secret cannot be read now."""
        return self._kafka_client

    @cached_property
    def _kafka_client(self) -> ClientConfig:
        client: dict[str, object] = {**self.kafka.client}
        for name, source in self.kafka.secrets.items():
            secret = source.secret(f"kafka.secrets.{name}", self.folder)
            secret.read()
            client[name] = secret
        if self.kafka.oauth is not None:
            client[OAUTH_COMMAND] = json.dumps(self.kafka.oauth.source)
        if self.reader != ReaderSection():
            client[RECORD_BYTES_OPTION] = str(self.reader.record_bytes_max)
        return ClientConfig({"bootstrap.servers": self.kafka.bootstrap_servers, **client})


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
    """Read and check everything; one UsageError lists all problems.

    `config`: the file; None takes `default_config()`.
    """
    path = config or default_config()
    if path.is_dir():
        raise UsageError(
            f"{path} is a folder; --config takes a settings file, such as {path / DEFAULT_CONFIG}"
        )
    if not path.is_file():
        raise UsageError(
            f"no settings file {path}; name one with --config or ${CONFIG_VARIABLE}, "
            "or run `shardstream local up`, which writes one"
        )
    try:
        given: dict[str, Any] = {"folder": path.resolve().parent}
        settings = _sources(path)(**given)
    except ValidationError as error:
        problems = describe(Settings, error.errors())
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise UsageError(f"{path}: {len(problems)} wrong setting(s)\n{lines}") from error
    except ValueError as error:  # tomllib's syntax error
        raise UsageError(f"{path} is not TOML: {error}") from error
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
    """Return the key ranges that none of these contains; they do not overlap."""
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
