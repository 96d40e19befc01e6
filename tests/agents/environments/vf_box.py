"""A taskset with tools, served beside it: what is in a box."""

import verifiers.v1 as vf


class BoxTools(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "box"

    @vf.tool
    def lookup(self, key: str) -> str:
        """Looks up what a key holds."""
        return {"apples": "42"}[key]


class BoxTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float("42" in trace.last_reply)

    @vf.metric
    async def tools(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))


class Box(vf.Taskset[BoxTask, vf.TasksetConfig]):
    def load(self):
        return [BoxTask(vf.TaskData(prompt=f"what is in box {i}")) for i in range(20)]

    @classmethod
    def toolsets(cls, config):
        return [BoxTools(vf.ToolsetConfig())]


__all__ = ["Box"]

if __name__ == "__main__":
    BoxTools.run()
