"""What `switch` and `cancel` say when they stop, with the commands that go on from there."""

from databases.errors import ServerLost
from event_token.errors import Retry
from resharding.switch.decision import Action, ReshardView, Step, Way
from resharding.switch.settings import SwitchSettings
from topics.keyspace.topology import ReshardState


def command(way: Way, settings: SwitchSettings) -> str:
    """The command line of a way on; `create` needs its shards, too."""
    if way is Way.CREATE:
        return f"{way.value} {settings.keyspace} ID ..."
    verb, _, option = way.value.partition(" --")
    return f"{verb} {settings.keyspace} {settings.reshard_id}" + (f" --{option}" if option else "")


def refused(step: Step, settings: SwitchSettings) -> str:
    """The message of a refusal."""
    said = f"reshard {settings.reshard_id}: {step.why}"
    if not step.ways:
        return said
    return said + ": " + " or ".join(f"`{command(way, settings)}`" for way in step.ways)


def lost(error: ServerLost, settings: SwitchSettings) -> str:
    """The message when a server, or the claim on it, is lost."""
    return (
        f"{error}. The server is lost, or a later `switch` or `cancel` has taken over: "
        f"`shardstream reshard status {settings.keyspace}` says what is next"
    )


def interrupted(error: Retry, settings: SwitchSettings) -> str:
    """The message when Kafka does not answer in the middle of a command."""
    return (
        f"{error}. Writes may be stopped: as soon as Kafka answers, run the command again, or see "
        f"`shardstream reshard status {settings.keyspace}`"
    )


def overdue(step: Step, view: ReshardView, settings: SwitchSettings, seconds: float) -> str:
    """The message when something did not come for so long."""
    ends = {source: end.seq for source, end in view.ends.items()}
    if view.decision is not None:
        ends = dict(view.decision.ends)
    if step.action is Action.AWAIT_DRAIN:
        seqs = ", ".join(
            f"END of {source} is seq {seq}, the target has "
            f"{view.checkpoints.get((step.shard, source))}"
            for source, seq in ends.items()
        )
        who = f"its applier ({seqs})"
    elif step.action is Action.AWAIT_BEGIN:
        who = f"the producer of {step.shard}"
    else:
        who = (
            "its producer, which stops where an account that is not in `application_accounts` "
            "changed a row after END, and the appliers, which stop where one changed or emptied a "
            "table"
        )
    ways = [Way.SWITCH]
    if view.state is ReshardState.RUNNING:
        ways.append(Way.CANCEL if view.decision is None else Way.CANCEL_LOST_TARGET)
    commands = " or ".join(f"`{command(way, settings)}`" for way in ways)
    return (
        f"reshard {settings.reshard_id}: {step} took more than {seconds:g} s: check {who}. Writes "
        f"are stopped: {commands}"
    )
