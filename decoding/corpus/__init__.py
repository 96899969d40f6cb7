"""Jobs over corpora: files in, files out, on all devices, and resumed after anything.

    from decoding.corpus import Task, run

    run(Task("translate", "models/demo"), ["german.txt.gz"], "english.txt.gz", workers=2)

The process that calls imports neither the engine nor torch; workers do, in processes of their own.
"""

from decoding.corpus.job import Done, Job, JobError, run
from decoding.corpus.ray_worker import RayWorker
from decoding.corpus.row_task import Answer, Answerer, Failed, RowTask
from decoding.corpus.task import Task

__all__ = [
    "Answer",
    "Answerer",
    "Done",
    "Failed",
    "Job",
    "JobError",
    "RayWorker",
    "RowTask",
    "Task",
    "run",
]
