"""Engines under measurement: one at a time, with fallbacks for configurations that do not work."""

from __future__ import annotations

import gc
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.device import Device
from benchmarks.sections import FeatureDisabled, Sections
from benchmarks.shapes import Shape
from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import Engine
from kernels.triton import pdl


@dataclass(frozen=True)
class Build:
    """Configuration of an engine with random weights of `shape`."""

    shape: Shape
    slots: int = 256
    budget: int | None = 8192  # tokens per step; None: chosen by the engine
    page_size: int = 64
    batch_invariant: bool = False
    early_launch: bool = True  # use early launch if the device supports it
    recorded: bool = True  # record steps if the device supports it

    def __str__(self) -> str:
        """Return the shape's name and all settings that differ from their defaults."""
        usual = Build(self.shape)
        changed = (f"{key}={value}" for key, value in vars(self).items() if value != getattr(usual, key))
        return " ".join((self.shape.name, *changed))


class Engines:
    """Cache of one engine: the last one requested. It is dropped, and its memory freed, before another is built.

    A configuration that cannot be built, or that crashes the device, is built again without early launch, and if that
    fails too, without recorded steps. While early launch is in use, any device failure is attributed to it.
    """

    def __init__(self, device: Device, sections: Sections) -> None:
        self._on = device
        self._sections = sections
        self._build: Build | None = None
        self._engine: Engine | None = None
        self._at_fault = ""  # feature to blame if the device is lost
        self.early_launch = False  # whether the last engine uses early launch

    def get(self, build: Build) -> Engine:
        """Return an idle engine of a configuration, in bfloat16 on a GPU. Raises GivenUp if no variant of it works."""
        if self._engine is not None and build == self._build and not self._engine.has_work:
            self._sections.use_feature(self._at_fault)
            return self._engine
        self.drop()
        self._engine, self._build = self._first_that_works(build), build
        return self._engine

    @property
    def recorded(self) -> bool:
        """Return whether the last engine records its steps."""
        return self._engine is not None and self._engine._runner.recorded_tokens > 0

    def drop(self) -> None:
        """Drop the last engine and free its memory."""
        if self._engine is not None:
            self._engine = None
            self._free()

    def _first_that_works(self, build: Build) -> Engine:
        plain = replace(build, early_launch=False)
        for attempt in dict.fromkeys((build, plain, replace(plain, recorded=False))):
            name = f"engine {attempt}"
            pdl.PDL_SWITCH.is_on = attempt.early_launch
            self.early_launch = pdl.uses_pdl(self._on.device)
            self._at_fault = "early launch" if self.early_launch else name
            try:
                for feature in (name, self._at_fault):
                    self._sections.use_feature(feature)
                return self._made(attempt)
            except FeatureDisabled:
                continue
            except Exception as error:
                if not self._on.works():
                    raise
                self._sections.disable(name, error)
            self._free()  # only here, where the exception no longer references the engine
        raise FeatureDisabled(f"{name} is no longer used: {self._sections.given_up[name]}")

    def _free(self) -> None:
        pdl.PDL_SWITCH.is_on = True
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
                kernels="auto" if self._on.on_gpu else "torch",  # a profiler cannot see inside a single-call step
            )
            engine = build_engine(config)
        gc.collect()
        gc.freeze()  # as a worker does before the first request
        return engine
