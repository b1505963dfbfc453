"""What `topics plan` prints, held against what producers create and check."""

import json
import re

import pytest
import yaml

from topics.kafka.topic_plan import PlanFormat, plan_text, planned_topics
from topics.kafka.topic_settings import FoundTopic, TopicSettings, costs_of, problems_of

SHARDS = ("-80", "80-")
CHOSEN = TopicSettings(replication_factor=3)
PLANNED = planned_topics("commerce", SHARDS, CHOSEN)


def printed(form: PlanFormat, chosen: TopicSettings = CHOSEN) -> str:
    """The plan of a keyspace with two shards."""
    return plan_text(planned_topics("commerce", SHARDS, chosen), chosen, form)


def test_topics_that_are_made_from_a_plan_are_accepted() -> None:
    """Created as planned, no topic has a problem or a price; the optional settings are named."""
    topics = {
        topic["topic"]: topic for topic in map(json.loads, printed(PlanFormat.JSON).split("\n"))
    }

    assert set(topics) == {
        *(
            "_shardstream.schemas",
            "_shardstream.positions",
            "commerce.topology",
            "commerce.readers",
            "commerce.audit",
        ),
        *(f"commerce.{shard}{end}" for shard in SHARDS for end in ("", ".progress", ".copy")),
    }
    for rules in PLANNED:
        topic = topics[rules.topic]
        found = FoundTopic(topic["partitions"], topic["settings"], topic["replicas"])
        assert problems_of(rules, found, "k:1") == costs_of(rules, found) == []
        without = {n: v for n, v in topic["settings"].items() if n not in topic["optional"]}
        assert problems_of(rules, FoundTopic(topic["partitions"], without, 3), "k:1") == []
    assert "unclean.leader.election.enable" in topics["commerce.-80"]["optional"]
    assert "cleanup.policy" not in topics["commerce.-80"]["optional"]


@pytest.mark.parametrize("form", PlanFormat)
def test_each_form_holds_every_topic_and_setting(form: PlanFormat) -> None:
    """All forms say the same, and replicas that the brokers choose are three."""
    text = printed(form, TopicSettings())

    for rules in PLANNED:
        assert rules.topic in text
        assert all(rule.name in text and rule.value in text for rule in rules.rules)
    assert text == printed(form)


def test_kubernetes_takes_the_names_of_the_plan() -> None:
    """Each topic is an object of its own with a valid name, whatever the shard is called."""
    objects = list(yaml.safe_load_all(printed(PlanFormat.STRIMZI)))
    names = [each["metadata"]["name"] for each in objects]

    assert [each["spec"]["topicName"] for each in objects] == [r.topic for r in PLANNED]
    assert len(set(names)) == len(names)
    part = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert all(re.fullmatch(rf"{part}(\.{part})*", name) for name in names), names


def test_terraform_takes_the_names_of_the_plan() -> None:
    """Resources have different names of letters, digits, dashes and underscores."""
    names = re.findall(r'resource "kafka_topic" "([^"]*)"', printed(PlanFormat.TERRAFORM))

    assert len(set(names)) == len(PLANNED)
    assert all(re.fullmatch(r"[A-Za-z_][0-9A-Za-z_-]*", name) for name in names)
