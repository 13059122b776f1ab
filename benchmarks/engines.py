"""Engines that are measured: one at a time, and what is done when one cannot be had."""

from __future__ import annotations

import gc
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.device import Device
from benchmarks.sections import GivenUp, Sections
from benchmarks.shapes import Shape
from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import Engine
from kernels import early


@dataclass(frozen=True)
class Build:
    """What an engine is built as: random weights of `shape`."""

    shape: Shape
    slots: int = 256
    budget: int | None = 8192  # tokens of a step; None: the engine decides
    page_size: int = 64
    batch_invariant: bool = False
    early_launch: bool = True  # kernels begin while those before them end, where the device can do that
    recorded: bool = True  # steps are, where the device can do that

    def __str__(self) -> str:
        """The shape's name, and what is not as it is by default."""
        usual = Build(self.shape)
        others = (f"{key}={value}" for key, value in vars(self).items() if value != getattr(usual, key))
        return " ".join((self.shape.name, *others))


class Engines:
    """One engine at a time: the last one asked for, while it is idle. Its memory is free before another is built.

    What cannot be built, or takes the device with it, is built without early launch, and where that is so too, without
    recordings. A device that is lost is early launch's fault for all of them, as long as it is used.
    """

    def __init__(self, device: Device, sections: Sections) -> None:
        self._on = device
        self._sections = sections
        self._wanted: Build | None = None
        self._engine: Engine | None = None
        self._at_fault = ""  # if the device is lost
        self.early_launch = False  # whether kernels of the last one begin early

    def get(self, build: Build) -> Engine:
        """In bfloat16 on a GPU. Raises GivenUp where there is none that works."""
        if self._engine is not None and build == self._wanted and not self._engine.has_work:
            self._sections.use(self._at_fault)
            return self._engine
        self.drop()
        self._engine, self._wanted = self._first_that_works(build), build
        return self._engine

    @property
    def recorded(self) -> bool:
        """Whether steps of the last one are."""
        return self._engine is not None and self._engine._runner.recorded_tokens > 0

    def drop(self) -> None:
        """Nothing of the last one is left."""
        if self._engine is not None:
            self._engine = None
            self._free()

    def _first_that_works(self, build: Build) -> Engine:
        plain = replace(build, early_launch=False)
        for attempt in dict.fromkeys((build, plain, replace(plain, recorded=False))):
            name = f"engine {attempt}"
            early.SWITCH.is_on = attempt.early_launch
            self.early_launch = early.starts_early(self._on.device)
            self._at_fault = "early launch" if self.early_launch else name
            try:
                for what in (name, self._at_fault):
                    self._sections.use(what)
                return self._made(attempt)
            except GivenUp:
                continue
            except Exception as error:
                if not self._on.works():
                    raise
                self._sections.give_up(name, error)
            self._free()  # when nothing of what was raised holds it
        raise GivenUp(f"{name} is given up: {self._sections.given_up[name]}")

    def _free(self) -> None:
        early.SWITCH.is_on = True
        gc.unfreeze()
        gc.collect()
        self._on.release()

    def _made(self, build: Build) -> Engine:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(build.shape.config()))
            config = EngineConfig(
                model=folder,
                load_format="dummy",
                device=str(self._on.device),
                dtype="bfloat16" if self._on.on_gpu else "float32",
                max_num_seqs=build.slots,
                max_num_batched_tokens=build.budget,
                max_model_len=4096,
                page_size=build.page_size,
                swap_space=1.0,
                enable_prefix_caching=False,
                batch_invariant=build.batch_invariant,
                enforce_eager=not build.recorded,
                early_launch=build.early_launch,
                kernels="auto" if self._on.on_gpu else "torch",  # a profiler does not see into a step in one call
            )
            engine = build_engine(config)
        gc.collect()
        gc.freeze()  # as a worker does, before the first request
        return engine
