"""A training script with a bug: after two steps it raises, to show what Allpass tells about a failed job."""

from allpass import training


def learning_rate(step, schedule):
    return schedule[step]


def main():
    schedule = {1: 0.1, 2: 0.05}
    for step in range(1, 11):
        if step not in schedule:
            raise ValueError(f"no learning rate for step {step}: the schedule covers steps {sorted(schedule)}")
        training.report(step, loss=1.0 / step, learning_rate=learning_rate(step, schedule))
        print(f"step {step} done", flush=True)


if __name__ == "__main__":
    main()
