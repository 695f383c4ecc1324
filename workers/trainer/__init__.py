"""The built-in recipe's training: Transformers models, PEFT adapters, a loop of our own on `allpass.training`.

A machine has this package from its agent, beside `allpass.training`. A job of it is a bundle of rows and a script of
three lines (`allpass.recipe.packing`); its parameters are a `Recipe` (`allpass.recipe.settings`).

What it is made of, so that two jobs can be trained in one process as well as one. None of these knows the loop, the
environment or another job; all that is random follows from the recipe's seed.

    prepared = model.prepare(recipe, labels)     Prepared: model, tokenizer, device, and `computing()`: its autocast
    task = tasks.load(data, recipe, prepared)    Task: one job's rows and what is asked of the model with them
        task.micro_batches(step)                 the Batches of a step, by `Stream` a pure function of (seed, step)
        task.loss(model, batch)                  summed loss of a Batch (divide by what is `counted`), and its hits
        task.held_out_batches()                  Batches without order or chance
    evaluation.evaluate(task, prepared)          {"eval_loss": ..., "eval_accuracy": ...}; None when told to give up
    update = updating.Update(recipe, model, last_step, device)
        update.add(loss); update.apply()         gradients gathered, clipped and applied: one step
        update.parts                             optimizer, scheduler, scaler: what a checkpoint holds beside weights
    progress.Progress(recipe)                    pure: the best evaluation so far, whether the target is reached
    best.BestWeights(model, folder)              the weights that the best evaluation saw
    learned.begin_with(folder, model, labels)    the best weights in another job's checkpoint, with a head of its own
    watching.FolderWatch(folder, task, ...)      how a job does that waits for these weights; told, never reported
    export.write(folder, prepared, summary)      the adapter as PEFT's own files, or the whole model as safetensors

`loop.Loop` puts them together for one job, and is the only place that reports, saves and leaves:

    loop = Loop(recipe, prepared, task, update, session)
    loop.run()                                   resumes, takes the steps that are left, saves the last, exports what
                                                 was best

On several GPUs (ADR 0093) there is a process for each, which takes its parts of every step; what they are made of is
`allpass.training.elastic`, which scripts of users have as well:

    with gathering.gathered(folder, recipe, session, gpus) as join:   starts the others, `follower`, and ends with them
        loop.train(recipe, data, session, join)
    ranks.each(parts, work)                      what came of all parts, in order, in all processes
    ranks.summing(parameters)                    gradients of parts, added in their order (`summing`)
    stepping.Stepping(...).gather(step, ...)     a step's gradients, by whichever processes there are
    handing_over.share(ranks, ...)               what the first process hands to the others when they meet
    sharding.prepare(recipe, data, join)         the model, its base split over all of them (ADR 0114)
    wanted_gpus.WantedGpus                       which GPUs it is to have; they may change between two steps (ADR 0098)

Two jobs that are trained as one (ADR 0026) share a model, and each is a `Side` with a session of its own:

    shared = shared.Shared(prepared, labels, own_heads=...)      one model; heads of classifiers are each job's own
    joint.Joint(shared, sides, session).run()                    side by side: None, or why they were split
    in_turn.InTurn(shared, sides, session).run()                 one, then the other from what it learned
        .drop(name)                                              this side leaves, the other goes on
    together.train(folder, process)              side by side under an agent: two environments, files for stops and ends
    keeping.Keeping(shared, sides, parts, ...)   checkpoints of both, in the session of each
    apart.state_in(folder, job_id)               what one of the two goes on from by itself
    monitor.LossMonitor(), turns.py, agreement.differing()           pure: when to split, whose step, who may be merged
    fisher.embedding(task, prepared)                             what tasks are compared by before: what a profile
                                                                 run tells (`main.profile`)

A step takes `task.micro_batches(step)`, whose losses are each divided by what the whole step counts: the result
does not depend on how a batch is cut into micro-batches, nor on where a run was interrupted.
"""

from __future__ import annotations
