"""Loading weights: damaged directories are refused by name, and memory stays near the weights' size."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from engine.execution.models import Model, ModelError, WeightsError, load_model
from engine.execution.models.sources import DummySource
from engine.model_files.open_model import open_model
from kernels.interface import Kernels
from tests import requirements
from tests.engine.models.checkpoints import Checkpoint, Checkpoints, save
from tests.engine.models.driver import Driver, Row
from tests.gguf_export import Type, export_gguf
from tests.limits import HANG_SECONDS

CPU = torch.device("cpu")
FILE = "model.safetensors"


def load(path: Path) -> Model:
    return load_model(open_model(path), torch.float32, CPU, lambda done, total: None)


@pytest.fixture
def broken(tmp_path: Path, checkpoints: Checkpoints) -> Path:
    """Return a copy of a good checkpoint, to be damaged."""
    return Path(shutil.copytree(checkpoints["llama"].path, tmp_path / "broken"))


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a checkpoint."""
    tensors = load_file(path / FILE)
    change(tensors)
    save_file(tensors, path / FILE)


def test_no_weights_at_all(broken: Path):
    """A directory without safetensors is named."""
    (broken / FILE).unlink()
    with pytest.raises(WeightsError, match="broken"):
        load(broken)


@pytest.mark.parametrize("size", [0, 7, 100, 5000, -1])
def test_a_truncated_file_is_named(broken: Path, size: int):
    """A file cut anywhere, in the header or in the data, is refused as damaged."""
    data = (broken / FILE).read_bytes()
    (broken / FILE).write_bytes(data[:size])
    with pytest.raises(WeightsError, match=FILE):
        load(broken)


@pytest.mark.parametrize(
    "header",
    [
        b"{not json",
        b"[1, 2]",
        b'{"model.norm.weight": {"dtype": "F99", "shape": [64], "data_offsets": [0, 256]}}',
        b'{"model.norm.weight": {"dtype": "F32", "shape": [64], "data_offsets": [0, 4]}}',
        b'{"model.norm.weight": {"dtype": "F32", "shape": "all", "data_offsets": [0, 4]}}',
        b'{"model.norm.weight": {"dtype": "F32", "shape": [64], "data_offsets": [-256, 0]}}',
    ],
)
def test_a_corrupt_header_is_named(broken: Path, header: bytes):
    """Any invalid header gives an error with the file's name."""
    (broken / FILE).write_bytes(len(header).to_bytes(8, "little") + header + bytes(256))
    with pytest.raises(WeightsError, match=FILE):
        load(broken)


def test_a_missing_tensor_is_named(broken: Path):
    """config.json requires it, and the file lacks it."""
    rewrite(broken, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(WeightsError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        load(broken)


def test_an_unexpected_tensor_is_named(broken: Path):
    """A tensor that is not read would be missing from the computation."""
    rewrite(broken, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}))
    with pytest.raises(WeightsError, match=r"1 tensors.*model\.layers\.0\.self_attn\.q_proj\.bias"):
        load(broken)


def test_leftovers_of_old_checkpoints_are_ignored(broken: Path):
    """Rope tables that old versions of transformers saved are computed again."""
    rewrite(broken, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}))
    load(broken)


def test_a_misshapen_tensor_is_named(broken: Path):
    """The message contains both shapes."""
    rewrite(broken, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(63)}))
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has shape \(63,\), but config\.json requires \(64,\)"):
        load(broken)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return save(tmp_path / "sharded", "Llama", {}, max_shard_size="100KB").path


def test_a_missing_shard_is_named(sharded: Path):
    """The index names a file that does not exist."""
    missing = sorted(sharded.glob("*.safetensors"))[1]
    missing.unlink()
    with pytest.raises(WeightsError, match=missing.name):
        load(sharded)


@pytest.mark.parametrize("index", ["{", "{}", '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../a.safetensors"}}'])
def test_a_bad_index_is_named(sharded: Path, index: str):
    """The index is invalid or points out of the directory."""
    (sharded / "model.safetensors.index.json").write_text(index)
    with pytest.raises(WeightsError, match=r"model\.safetensors\.index\.json"):
        load(sharded)


def test_a_single_file_comes_before_an_index_beside_it(tmp_path: Path):
    """As in transformers, a single file saved into the folder of older shards is the newer model."""
    save(tmp_path, "Llama", {}, max_shard_size="100KB")
    newer = save(tmp_path / "newer", "Llama", {"num_hidden_layers": 3}).path
    for name in ("model.safetensors", "config.json"):
        shutil.copy(newer / name, tmp_path / name)
    assert load(tmp_path).cache_spec().groups[0].layers == 3


def test_a_tensor_in_the_wrong_shard_is_named(sharded: Path):
    """The index and the shards must agree."""
    file = sharded / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"]["model.absent.weight"] = next(iter(index["weight_map"].values()))
    file.write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"model\.absent\.weight"):
        load(sharded)


def test_a_directory_without_a_readable_config_is_named(tmp_path: Path):
    """config.json is missing or invalid JSON."""
    for content in (None, "{"):
        if content is not None:
            (tmp_path / "config.json").write_text(content)
        with pytest.raises(ModelError, match=r"config\.json"):
            load(tmp_path)


def test_progress_ascends_to_the_size_of_the_files(checkpoints: Checkpoints):
    """Bytes done never decrease and end at the total, which is the size of all tensors."""
    calls: list[tuple[int, int]] = []
    checkpoint = checkpoints["llama"]
    load_model(open_model(checkpoint.path), torch.float32, CPU, lambda done, total: calls.append((done, total)))
    done = [call[0] for call in calls]
    size = sum(tensor.nbytes for tensor in load_file(checkpoint.path / FILE).values())
    assert done == sorted(done) and len(done) > 10
    assert {total for _, total in calls} == {size} and done[-1] == size


def test_dummy_weights_need_no_files_and_are_the_same_every_time(
    tmp_path: Path, kernels: Kernels, checkpoints: Checkpoints
):
    """load_format="dummy" fills the shapes of config.json with the same random numbers at every start."""
    shutil.copy(checkpoints["qwen3"].path / "config.json", tmp_path)
    models = [load_model(open_model(tmp_path), torch.float32, CPU, lambda done, total: None, "dummy") for _ in range(2)]
    first, second = (Driver(model, kernels).prefill(Row([1, 2, 3]), 10) for model in models)
    assert torch.equal(first, second)
    assert first.isfinite().all() and float(first.std()) > 0


def test_dummy_weights_are_created_on_their_device():
    """They are not created elsewhere and copied: on the default device "meta", tensors would have no data."""
    out = torch.empty(3, 4, dtype=torch.bfloat16)
    with torch.device("meta"):
        DummySource(0, torch.bfloat16).read_into("some.weight", out)
    assert out.isfinite().all() and float(out.float().std()) > 0


def test_an_unknown_load_format_is_refused(tmp_path: Path):
    """The message lists the supported formats."""
    with pytest.raises(ModelError, match="load_format must be one of safetensors, dummy, got 'gguf'"):
        load_model(open_model(tmp_path), None, CPU, lambda done, total: None, "gguf")


MEASURE = """
import sys
from pathlib import Path
import torch
from engine.execution.models import load_model
from engine.model_files.open_model import open_model
from kernels.load import load

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

load(torch.device("cpu"), torch.float32).pack_linear(torch.ones(64, 64), None)(torch.ones(3, 64))
peak, resident = status("VmHWM"), status("RssAnon")
files = open_model(Path(sys.argv[1]), with_vocabulary=False)
model = load_model(files, torch.float32, torch.device("cpu"), lambda done, total: None)
print(status("VmHWM") - peak, status("RssAnon") - resident, 4 * model.num_parameters)
"""


needs_status = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@needs_status
def test_loading_takes_little_more_memory_than_the_weights(tmp_path: Path):
    """With a checkpoint of 200 MB, packed while loading, the peak rises by less than 1.35 times its size."""
    shape = {"hidden_size": 1024, "intermediate_size": 2752, "num_attention_heads": 16, "num_key_value_heads": 8}
    made: Checkpoint = save(tmp_path, "Llama", shape | {"num_hidden_layers": 4, "vocab_size": 3000})
    del made
    peak, _, weights = measure(tmp_path)
    assert weights > 190e6
    assert peak < 1.35 * weights, f"{peak / 1e6:.0f} MB for {weights / 1e6:.0f} MB of weights"


@needs_status
@requirements.a_compiler
def test_quantised_weights_take_the_memory_of_their_tensors(demo: Path, tmp_path: Path):
    """Rows of a GGUF file that were unpacked for loading leave nothing behind."""
    for file in demo.glob("*.json"):
        shutil.copy(file, tmp_path)
    shape = {"hidden_size": 1024, "intermediate_size": 2752, "num_attention_heads": 16, "head_dim": 64}
    config = json.loads((demo / "config.json").read_text()) | shape | {"num_key_value_heads": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = LlamaForCausalLM(LlamaConfig(**config)).state_dict()
    save_file({name: part for name, part in tensors.items() if name != "lm_head.weight"}, tmp_path / FILE)
    file = export_gguf(tmp_path, tmp_path / "model.gguf", lambda name: Type.Q4_1)
    _, resident, _ = measure(file)
    size = open_model(file).description().file_bytes
    assert size > 40e6
    assert resident < 1.1 * size, f"{resident / 1e6:.0f} MB for {size / 1e6:.0f} MB of tensors"


def measure(model: Path) -> list[int]:
    """Load a model in a new process; return the rise of its peak and of its memory, and the bytes of its weights."""
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(model)],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    return [int(word) for word in result.stdout.split()]
