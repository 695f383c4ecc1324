"""A fine-tuning script as people have it for OpenAI. Two strings are changed: the address and the key.

pip install openai
export OPENAI_BASE_URL=http://127.0.0.1:7700/openai/v1 OPENAI_API_KEY=ak_...
python openai_fine_tuning.py chats.jsonl gpt-4o-mini-2024-07-18
"""

import sys
import time
from pathlib import Path

from openai import OpenAI


def main(path, model):
    client = OpenAI()  # address and key are read from the environment

    file = client.files.create(file=Path(path), purpose="fine-tune")
    if file.status == "error":
        sys.exit(file.status_details)

    job = client.fine_tuning.jobs.create(
        model=model,
        training_file=file.id,
        suffix="support",
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 3}}},
        metadata={"allpass_deadline": "6h", "allpass_max_cost": "25"},  # what Allpass has beside
    )
    seen = set()
    while job.status not in ("succeeded", "failed", "cancelled"):
        time.sleep(2)
        job = client.fine_tuning.jobs.retrieve(job.id)
        for event in reversed(client.fine_tuning.jobs.list_events(job.id, limit=50).data):
            if event.id not in seen:
                seen.add(event.id)
                print(event.message)
    if job.status != "succeeded":
        sys.exit(job.error.message if job.error else job.status)

    print("model:", job.fine_tuned_model)
    answer = client.chat.completions.create(
        model=job.fine_tuned_model, messages=[{"role": "user", "content": "Where is my order?"}], max_tokens=50
    )
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "gpt-4o-mini-2024-07-18")
