"""The Lua scripts: every write that depends on what is there is one step on the server."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

Word = str | bytes | int

CLUSTER_SLOTS: tuple[Word, ...] = ("CLUSTER", "SLOTS")

# A swap's answers besides the number of slots that it removed.
SWAP_LOST = -1
SWAP_CLOSED = -2


class Call(NamedTuple):
    """One command for the server of a group; `source` is the script that it names by its hash."""

    group: int
    words: tuple[Word, ...]
    source: str | None = None


class Script:
    """A script, called by its hash."""

    def __init__(self, source: str) -> None:
        """Compute the hash by which servers know it."""
        self.source = source
        self.sha = hashlib.sha1(source.encode()).hexdigest()  # noqa: S324 - Redis's own choice

    def call(self, group: int, keys: Sequence[str], args: Sequence[Word]) -> Call:
        """Return the call of the script on keys of one group."""
        return Call(group, ("EVALSHA", self.sha, len(keys), *keys, *args), self.source)


# KEYS floor, slot; ARGV floor and slot as expected ('' for absent), entry, TTL in ms.
FILL = Script("""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
return 1
""")

# KEYS floor, slot; ARGV slot as expected, placeholder, TTL in ms. Returns the floor in a list.
PREPARE = Script("""
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return {redis.call('GET', KEYS[1])}
""")

# KEYS slot; ARGV placeholder.
RELEASE = Script("""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
""")

# KEYS floor, slots that stay, slots that go; ARGV floor as expected, floor to write ('' deletes
# it), how each slot that stays must begin. A floor that finds no memory is deleted with all slots,
# which is allowed without memory: the bucket is closed.
_SWAP = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
local kept = #ARGV - {others}
for i = 1, kept do
  local seen = ARGV[i + 2]
  if redis.call('GETRANGE', KEYS[i + 1], 0, #seen - 1) ~= seen then return -1 end
end
local removed = 0
local full = false
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
elseif ARGV[2] ~= ARGV[1] then
  full = redis.pcall('SET', KEYS[1], ARGV[2]).err
  if full then redis.call('DEL', KEYS[1]) end
end
{remove}
return full and -2 or removed
"""

SWAP = Script(
    _SWAP.format(
        others=2,
        remove="""
for i = 2 + (full and 0 or kept), #KEYS do removed = removed + redis.call('DEL', KEYS[i]) end
""".strip(),
    )
)

# The same, with a name after them for each slot that goes, and a TTL in ms after the others: an
# entry that goes is kept under that name. Needs no memory.
SWAP_KEEPING = Script(
    _SWAP.format(
        others=3,
        remove="""
local gone = (#KEYS - 1 - kept) / 2
for i = 2 + (full and 0 or kept), #KEYS - gone do
  if not full and redis.call('GETRANGE', KEYS[i], 0, 0) == 'V' then
    redis.call('RENAME', KEYS[i], KEYS[i + gone])
    redis.call('PEXPIRE', KEYS[i + gone], ARGV[#ARGV])
    removed = removed + 1
  else
    removed = removed + redis.call('DEL', KEYS[i])
  end
end
""".strip(),
    )
)

# KEYS any; ARGV its value as expected ('' for absent), its new value. Returns what is there
# instead in a list, or 1.
REPLACE = Script("""
local now = redis.call('GET', KEYS[1])
if (now or '') ~= ARGV[1] then return {now} end
redis.call('SET', KEYS[1], ARGV[2])
return 1
""")

# KEYS lease; ARGV holder, TTL in ms.
LEASE = Script("""
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
""")
