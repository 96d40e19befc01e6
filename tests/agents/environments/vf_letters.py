"""A taskset of one turn: the share of a letter. Options make its rewards fall over, sleep, or say nothing."""

import asyncio

import verifiers.v1 as vf


class Data(vf.TaskData):
    letter: str = "a"
    fault: str = ""
    seen: list[str] = []


class LetterTask(vf.Task[Data]):
    @vf.reward
    async def share(self, trace: vf.Trace) -> float:
        if self.data.fault == "raises":
            raise RuntimeError("the rubric fell over")
        if self.data.fault == "sleeps":
            await asyncio.sleep(1e6)
        if self.data.fault == "pays too much":
            return 1e200
        if self.data.fault == "grows":
            self.data.seen.append("seen")
            return float(len(self.data.seen))
        return trace.last_reply.count(self.data.letter) / max(1, len(trace.last_reply))

    @vf.reward(weight=0.5)
    async def upper(self, trace: vf.Trace) -> float:
        return float(any(c.isupper() for c in trace.last_reply))

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class Config(vf.TasksetConfig):
    split: str = "train"
    letter: str = "a"
    fault: str = ""
    tasks: int = 40
    endless: bool = False


class Letters(vf.Taskset[LetterTask, Config]):
    @property
    def bounded(self):
        return not self.config.endless if self._bounded is None else self._bounded

    def load(self):
        number = 0
        while self.config.endless or number < self.config.tasks:
            text = f"{self.config.split}: say {self.config.letter}, {number}"
            fault = self.config.fault if number % 2 else ""
            system = "be short" if number % 2 else None
            yield LetterTask(Data(prompt=text, letter=self.config.letter, fault=fault, system_prompt=system))
            number += 1


__all__ = ["Letters"]
