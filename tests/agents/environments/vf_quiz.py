"""An environment of its own: it asks twice, and judges at the end."""

import verifiers.v1 as vf


class QuizTask(vf.Task[vf.TaskData]):
    @vf.metric
    async def said(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class Quiz(vf.Taskset[QuizTask, vf.TasksetConfig]):
    def load(self):
        return [QuizTask(vf.TaskData(name=f"quiz {i}")) for i in range(20)]


class QuizConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
    fault: str = ""


class QuizEnv(vf.Env[QuizConfig]):
    async def run(self, task, agents):
        if self.config.fault:
            raise RuntimeError(self.config.fault)
        async with agents.player.interaction(task) as player:
            await player.turn("say a")
            await player.turn("say it again")

    async def finalize(self, task, episode):
        (trace,) = episode.traces
        words = "".join(message.content or "" for message in trace.assistant_messages)
        trace.record_reward("letters", words.count("a"))


__all__ = ["Quiz", "QuizEnv"]
