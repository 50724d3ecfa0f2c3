"""The queue behind the policies against an OrderedDict, on random histories."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.policies.key_queue import KeyQueue

KEYS = st.lists(st.integers(0, 40), unique=True, max_size=12)
STEPS = st.lists(
    st.tuples(st.sampled_from(["extend", "remove", "discard", "pop", "peek"]), KEYS), max_size=150
)


@given(STEPS)
def test_it_does_what_an_ordered_dict_does(steps):
    queue, twin = KeyQueue(), OrderedDict()
    for name, keys in steps:
        if name == "extend":
            fresh = [key for key in keys if key not in twin]
            queue.extend(fresh)
            twin.update(dict.fromkeys(fresh))
        elif name == "remove":
            present = [key for key in keys if key in twin]
            queue.remove(present)
            for key in present:
                del twin[key]
        elif name == "discard":
            queue.discard(keys)
            for key in keys:
                twin.pop(key, None)
        elif name == "pop":
            count = min(len(keys), len(twin))
            assert queue.pop_oldest(count) == [twin.popitem(last=False)[0] for _ in range(count)]
        else:
            assert queue.oldest(len(keys)) == list(twin)[: len(keys)]
        assert list(queue) == list(twin)
        assert len(queue) == len(twin)
        assert queue.keys == set(twin)


def test_what_is_taken_out_leaves_the_order_in_the_end():
    queue = KeyQueue()
    for _ in range(1000):
        queue.extend("abcdef")
        queue.remove("abcdef")
        queue.extend("xyz")
        queue.remove("zyx")
    assert len(queue._order) < 100
