"""Rotation of waiting tenants."""

from __future__ import annotations

import asyncio

from app.admission.rotation import Rotation


async def test_tenants_are_served_in_rotation():
    """A tenant that was served goes to the end."""
    rotation, served = Rotation(), []
    for tenant in ("a", "a", "a", "b", "c", "b"):
        rotation.join(tenant, 1)
    while rotation.grant(lambda tenant, _: served.append(tenant) is None):
        pass
    assert served == ["a", "b", "c", "a", "b", "a"] and len(rotation) == 0


async def test_a_tenant_that_may_not_go_holds_up_no_other():
    """It keeps its place in the rotation."""
    rotation = Rotation()
    first, second = rotation.join("a", 5), rotation.join("b", 5)
    assert rotation.grant(lambda tenant, _: tenant == "b")
    assert second.done() and not first.done()
    assert not rotation.grant(lambda _, size: size < 5)


async def test_a_cancelled_work_leaves_its_queue():
    """It is neither granted nor counted, and its tenant keeps its place."""
    rotation = Rotation()
    leaving, staying = rotation.join("a", 1), rotation.join("a", 2)
    leaving.cancel()
    assert rotation.grant(lambda *_: True) and staying.done()
    await asyncio.sleep(0)
    assert rotation.waiting("a") == 0 and not rotation.grant(lambda *_: True)
