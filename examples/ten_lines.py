import re

import gspo

ask = "Emma has {} marbles and gives away {}. How many marbles does Emma have left? Answer in one short sentence."
rows = [{"prompt": ask.format(a, b), "answer": str(a - b)} for a in range(4, 20) for b in range(2, a)]


def right(prompts, completions, answer, **columns):
    return [float(re.findall(r"\d+", text)[-1:] == [a]) for text, a in zip(completions, answer)]


size = {"num_prompts": 8, "max_completion_length": 24, "temperature": 0.7}
result = gspo.train(gspo.fetch_smollm2(), rows, right, rollout=size, algorithm={"epsilon": "auto"}, train={"steps": 20})
print(result)
