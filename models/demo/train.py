"""Train the demonstration model: python -m models.demo.train --minutes 160 --work build/demo

Owns the training loop, its schedule and its checkpoints. The wall clock drives the schedule: warm up, hold, then decay
to zero over the last part of --minutes. A run that was cut off goes on from its last checkpoint; a finished one goes on
with larger --minutes.
"""

import argparse
import csv
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from models.demo.batches import Batch, pool
from models.demo.network import Network, Shape
from models.demo.optimiser import optimisers
from models.demo.tokens import train_tokenizer
from tokenizers import Tokenizer

TOKENIZER_DOCUMENTS = 25_000
POOL_TOKENS = 200_000
CHECKPOINT_SECONDS = 240.0


@dataclass(frozen=True)
class Plan:
    seed: int = 7
    minutes: float = 160.0
    batch_tokens: int = 2048  # padded positions of one forward and backward pass
    passes: int = 2  # passes per step
    matrix_lr: float = 0.015
    other_lr: float = 2e-3
    warmup_steps: int = 40
    decay_share: float = 0.5  # of the minutes
    copying_pools: int = 5  # the first pools are mostly echoes: a model that cannot copy yet learns little else
    copying_share: float = 0.75  # of their documents
    compile: bool = True


@dataclass
class Progress:
    """What a checkpoint must remember beside the weights."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    pool: int = 0


def rate(plan: Plan, progress: Progress) -> float:
    """The learning rate's factor: warm-up, stable, linear decay (WSD)."""
    left = 1.0 - progress.seconds / (plan.minutes * 60)
    return max(0.0, min(1.0, (progress.step + 1) / plan.warmup_steps, left / plan.decay_share))


def load_tokenizer(plan: Plan, work: Path, shape: Shape) -> Tokenizer:
    path = work / "tokenizer.json"
    if not path.exists():
        train_tokenizer(plan.seed, TOKENIZER_DOCUMENTS, shape.vocab_size).save(str(path))
    return Tokenizer.from_file(str(path))


def batches(plan: Plan, tokenizer: Tokenizer, progress: Progress) -> Iterator[Batch]:
    while True:
        share = plan.copying_share if progress.pool < plan.copying_pools else 0.0
        yield from pool(tokenizer, plan.seed, progress.pool, POOL_TOKENS, plan.batch_tokens, share)
        progress.pool += 1


def train(plan: Plan, work: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(plan.seed)
    shape = Shape()
    tokenizer = load_tokenizer(plan, work, shape)
    network = Network(shape)
    engines = optimisers(network, plan.matrix_lr, plan.other_lr)
    progress = resume(work / "last.pt", network, engines)
    forget_after(work / "loss.csv", progress.step)
    loss_of = torch.compile(network.loss, dynamic=True) if plan.compile else network.loss
    stream = batches(plan, tokenizer, progress)
    saved, started = progress.seconds, time.monotonic() - progress.seconds
    while progress.seconds < plan.minutes * 60:
        factor = rate(plan, progress)
        for engine, lr in zip(engines, (plan.matrix_lr, plan.other_lr), strict=True):
            for group in engine.param_groups:
                group["lr"] = lr * factor
        step = [next(stream) for _ in range(plan.passes)]
        learned = sum(len(batch.targets) for batch in step)
        total = 0.0
        for batch in step:
            loss = loss_of(batch.ids, batch.places, batch.targets) / learned
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for engine in engines:
            engine.step()
            engine.zero_grad()
        progress.step += 1
        progress.tokens += sum(batch.ids.numel() for batch in step)
        progress.seconds = time.monotonic() - started
        log(work / "loss.csv", progress, total, factor)
        if progress.seconds - saved > CHECKPOINT_SECONDS:
            saved = progress.seconds
            save(work / "last.pt", network, engines, progress, plan)
    save(work / "last.pt", network, engines, progress, plan)


def log(path: Path, progress: Progress, loss: float, factor: float) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(("step", "seconds", "tokens", "loss", "rate"))
        writer.writerow((progress.step, f"{progress.seconds:.1f}", progress.tokens, f"{loss:.4f}", f"{factor:.4f}"))
    if progress.step % 20 == 0:
        print(
            f"step {progress.step}  {progress.seconds:.0f} s  {progress.tokens:,} tokens  loss {loss:.4f}", flush=True
        )


def forget_after(path: Path, step: int) -> None:
    """Drop the log of steps that a resumed run will take again."""
    if path.exists():
        header, *rows = path.read_text().splitlines()
        path.write_text("\n".join([header, *(row for row in rows if int(row.split(",")[0]) <= step)]) + "\n")


def save(path: Path, network: Network, engines: list[torch.optim.Optimizer], progress: Progress, plan: Plan) -> None:
    """Written beside and then moved, so that a checkpoint is whole or absent."""
    state = {
        "network": network.state_dict(),
        "optimisers": [engine.state_dict() for engine in engines],
        "progress": asdict(progress),
        "plan": asdict(plan),
    }
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def resume(path: Path, network: Network, engines: list[torch.optim.Optimizer]) -> Progress:
    if not path.exists():
        return Progress()
    state = torch.load(path, weights_only=True)
    network.load_state_dict(state["network"])
    for engine, saved in zip(engines, state["optimisers"], strict=True):
        engine.load_state_dict(saved)
    return Progress(**state["progress"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=Plan.minutes, help="wall-clock minutes of the whole schedule")
    parser.add_argument("--seed", type=int, default=Plan.seed)
    parser.add_argument("--work", type=Path, default=Path("build/demo"), help="where checkpoints and the log go")
    parser.add_argument("--threads", type=int, default=0, help="0 leaves the choice to torch")
    parser.add_argument("--copying-pools", type=int, default=Plan.copying_pools)
    parser.add_argument("--decay-share", type=float, default=Plan.decay_share, help="of the minutes")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    plan = Plan(
        seed=args.seed,
        minutes=args.minutes,
        copying_pools=args.copying_pools,
        decay_share=args.decay_share,
        compile=not args.no_compile,
    )
    train(plan, args.work)


if __name__ == "__main__":
    main()
