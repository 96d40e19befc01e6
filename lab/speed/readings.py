"""The figures of each benchmark, read from what its script writes. A figure is a ratio (or a slope) with its interval."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WORSE = 0.15
SLOPES = "scaling"  # the one group whose figures are exponents, not ratios
Figure = dict[str, Any]  # value, low, high, repeats, better: "higher" or "lower"; and what else the table shows


def figure(value: float, low: float, high: float, repeats: int, better: str = "higher", **more: Any) -> Figure:
    """One figure with its interval."""
    return {"value": value, "low": low, "high": high, "repeats": repeats, "better": better} | more


def case(model: str, shape: list[int]) -> str:
    """A model and the shape of its completions, as figures are named."""
    return f"{model}, P {shape[0]} R {shape[1]} G {shape[2]}"


def of_update(raw: Any) -> Iterator[tuple[str, Figure]]:
    """Padded rows over `auto`, by model and shape."""
    for row in raw["results"]:
        if row["layout"] != "padded":
            more = {"seconds": row["seconds"], "roofline": row["roofline"]}
            name = case(row["model"], row["shape"])
            yield name, figure(row["ratio"], row["low"], row["high"], row["repeats"], **more)


def of_update_trl(raw: Any) -> Iterator[tuple[str, Figure]]:
    """TRL's update over ours, by model and shape."""
    for row in raw["results"]:
        name = f"{case(row['model'], row['shape'])} against {row['against']}"
        more = {"seconds": row["seconds"], "other_seconds": row["other_seconds"]}
        yield name, figure(row["ratio"], row["low"], row["high"], row["repeats"], **more)


def of_rollout_step(raw: Any) -> Iterator[tuple[str, Figure]]:
    """TRL's step over ours."""
    for task, results in raw["tasks"].items():
        for name, own in results["summary"].items():
            parts = {part: own[part] for part in ("seconds", "sample", "train")}
            repeats = len(results["steps"][name])
            for opponent, s in own["speed_up"].items():
                yield f"{task}: {name} against {opponent}", figure(s["median"], s["low"], s["high"], repeats, **parts)


def of_sampling(raw: Any) -> Iterator[tuple[str, Figure]]:
    """Our tokens a second over those of `generate`; and those of its continuous batching."""
    for row in raw["results"]:
        for engine, own in row["engines"].items():
            if engine != "generate":
                name = f"{engine}, {row['model']}, {row['case']}, {row['rows']} rows"
                rate = {"tokens_per_second": own["tokens_per_second"]}
                yield name, figure(own["ratio_to_generate"], own["ratio_low"], own["ratio_high"], raw["repeats"], **rate)


def of_head(raw: Any) -> Iterator[tuple[str, Figure]]:
    """Seconds over those of all logits at once, or of checkpointed chunks where these do not fit. The base is 1."""
    for row in raw["results"]:
        for name, own in row["variants"].items():
            base = next((key for key in ("to_full", "to_chunks") if key in own), None)
            if base is None:
                continue
            low, high = own["interval"]
            more = {"against": base[3:], "seconds": own["seconds"], "GiB": own["GiB"]}
            yield f"{name}, {row['tokens']} tokens", figure(own[base], low, high, raw["repeats"], "lower", **more)


def of_scaling(raw: Any) -> Iterator[tuple[str, Figure]]:
    """Slopes of log time, and of log memory, with seconds and GiB by size."""
    for name, own in raw["results"].items():
        for key, unit, slope in ((name, "seconds", own), (f"{name}, memory", "GiB", own["memory"])):
            by_size = {unit: own[unit]}
            yield key, figure(slope["slope"], slope["low"], slope["high"], own["repeats"], "lower", **by_size)


def of_engines(raw: Any) -> Iterator[tuple[str, Figure]]:
    """The embedded sampler's tokens a second over vLLM's."""
    for row in raw["results"]:
        name = f"{row['model']}, {row['rows']} rows"
        yield name, figure(row["ratio"], row["low"], row["high"], raw["repeats"], rates=row["rates"])


def worse(before: Figure, now: Figure, slope: bool = False) -> bool:
    """Whether a figure is worse than it was by more than 15 % (a slope: by 0.15), and beyond its interval of then."""
    room = WORSE * (1.0 if slope else before["value"])
    if before["better"] == "higher":
        return now["value"] < before["value"] - room and now["value"] < before["low"]
    return now["value"] > before["value"] + room and now["value"] > before["high"]


def regressions(group: str, before: dict[str, Figure], now: dict[str, Figure]) -> list[str]:
    """A line for each figure of a group that has become worse, is gone, or has another base."""
    lines = []
    for name, was in before.items():
        is_now = now.get(name)
        if is_now is None or is_now.get("against") != was.get("against"):
            lines.append(f"{group}: {name}: {'is gone' if is_now is None else 'is against ' + str(is_now.get('against'))}")
        elif worse(was, is_now, group == SLOPES):
            lines.append(f"{group}: {name}: {was['value']:.2f} -> {is_now['value']:.2f}")
    return lines
