"""Bounds on keys of tenants."""

from __future__ import annotations

import random

from app.admission.bounded_keys import BoundedKeys


def test_a_tenant_loses_its_own_oldest_key():
    """Other tenants lose none."""
    keys: BoundedKeys[int] = BoundedKeys(10, 3)
    keys.add("calm", "k", 0)
    for number in range(5):
        keys.add("flood", str(number), number)
    assert [keys.get("flood", str(number)) for number in range(5)] == [None, None, 2, 3, 4]
    assert keys.get("calm", "k") == 0 and len(keys) == 4 and keys.evicted == 2


def test_the_tenant_with_the_most_keys_loses_first():
    """With many tenants the total is bounded, and those with few keys keep them."""
    keys: BoundedKeys[int] = BoundedKeys(6, 5)
    keys.add("calm", "k", 0)
    for number in range(4):
        keys.add("flood", str(number), number)
    for number in range(3):
        keys.add(f"tenant {number}", "k", number)
    assert len(keys) == 6 and keys.get("calm", "k") == 0
    assert [keys.get("flood", str(number)) for number in range(4)] == [None, None, 2, 3]


def test_random_operations_keep_both_bounds():
    """A plain model of the same rules has the same keys after each operation."""
    chance = random.Random(1)
    keys: BoundedKeys[int] = BoundedKeys(20, 8)
    model: dict[str, list[str]] = {}
    for number in range(3000):
        tenant = f"t{min(chance.randrange(8), chance.randrange(8))}"
        if chance.random() < 0.3 and model.get(tenant):
            key = chance.choice(model[tenant])
            model[tenant].remove(key)
            keys.remove(tenant, key)
        else:
            model.setdefault(tenant, []).append(str(number))
            keys.add(tenant, str(number), number)
            if len(model[tenant]) > 8:
                model[tenant].pop(0)
            elif sum(map(len, model.values())) > 20:
                most = max(map(len, model.values()))
                losing = [name for name, names in model.items() if len(names) == most]
                lost = [name for name in losing if keys.get(name, model[name][0]) is None]
                assert len(lost) == 1
                model[lost[0]].pop(0)
        assert len(keys) == sum(map(len, model.values())) <= 20
        assert all(keys.get(name, key) == int(key) for name, names in model.items() for key in names)
