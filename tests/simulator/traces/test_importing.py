"""Published logs become traces: real columns, real oddities, and errors that name the place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from app.errors import InvalidInput
from app.simulator.traces.importing import READERS, import_trace
from app.simulator.traces.job import TraceJob

SLURM_HEAD = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
SEREN_HEAD = "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time"
KALOS_HEAD = (
    "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,"
    "end_time,fail_time,stop_time,duration,queue,gpu_time"
)
POD_HEAD = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
)
PHILLY_JOB = {
    "status": "Pass",
    "vc": "ee9e8c",
    "jobid": "application_1506638472019_14199",
    "attempts": [
        {
            "start_time": "2017-10-07 01:12:09",
            "end_time": "2017-10-07 01:13:23",
            "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}],
        },
        {
            "start_time": "2017-10-07 01:13:30",
            "end_time": "2017-10-07 02:13:30",
            "detail": [{"ip": "m412", "gpus": ["gpu0", "gpu1"]}, {"ip": "m413", "gpus": ["gpu7"]}],
        },
    ],
    "submitted_time": "2017-10-07 01:11:39",
    "user": "ce2f4c",
}


def lines(folder: Path, *rows: str, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(rows) + "\n")
    return path


def philly(folder: Path, *entries: Any) -> Path:
    path = folder / "cluster_job_log"
    path.write_text(json.dumps(entries))
    return path


def told(source: str, path: Path) -> str:
    with pytest.raises(InvalidInput) as caught:
        import_trace(source, path)
    return caught.value.message


def test_philly(tmp_path: Path) -> None:
    """The time of all attempts together, the GPUs of the last; times count from the first submission."""
    later = PHILLY_JOB | {"jobid": "later", "submitted_time": "2017-10-07 01:12:39", "status": "Killed", "user": None}
    trace = import_trace("philly", philly(tmp_path, later, PHILLY_JOB))
    assert trace.name == "philly"
    assert trace.jobs == (
        TraceJob("application_1506638472019_14199", 0, 74 + 3600, 3, user="ce2f4c", state="completed"),
        TraceJob("later", 60, 74 + 3600, 3, state="cancelled"),
    )


@pytest.mark.parametrize("nothing", [None, "", "None"])
def test_philly_jobs_that_did_not_run_to_an_end(tmp_path: Path, nothing: str | None) -> None:
    """No attempt, an attempt without an end or start, no GPU named, or no submission: left out, and counted."""
    attempt: dict[str, Any] = PHILLY_JOB["attempts"][0]  # type: ignore[index]  # JSON
    broken = [
        PHILLY_JOB | {"attempts": []},
        PHILLY_JOB | {"attempts": [attempt | {"end_time": nothing}]},
        PHILLY_JOB | {"attempts": [attempt | {"start_time": nothing}]},
        PHILLY_JOB | {"attempts": [attempt | {"detail": []}]},
        PHILLY_JOB | {"submitted_time": nothing},
    ]
    trace = import_trace("philly", philly(tmp_path, PHILLY_JOB, *broken))
    assert (len(trace.jobs), trace.left_out) == (1, 5)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"jobid": 7}, "job number 2, jobid: 7 is no id; give text"),
        ({"submitted_time": "noon"}, "job number 2, submitted_time: 'noon' is no instant; give one like 2017-10-07"),
        ({"attempts": None}, "job number 2, attempts: None is not a list"),
        ({"attempts": ["x"]}, "job number 2, attempts[0]: 'x' is not an attempt"),
        ({"attempts": [{"start_time": 5}]}, "job number 2, attempts[0].start_time: 5 is no instant"),
        (
            {"attempts": [PHILLY_JOB["attempts"][0] | {"detail": [{"ip": "m1"}]}]},  # type: ignore[index]  # JSON
            "job number 2, attempts[0].detail: [{'ip': 'm1'}] is no list of machines",
        ),
    ],
)
def test_faults_of_a_philly_job_are_named(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    """With the number of the job, the field and its value."""
    assert expected in told("philly", philly(tmp_path, PHILLY_JOB, PHILLY_JOB | change))


def test_a_philly_log_is_a_json_list(tmp_path: Path) -> None:
    """Where the JSON breaks is told, and what file is wanted."""
    path = tmp_path / "cluster_job_log"
    path.write_text('[\n{"jobid": }]')
    assert "cluster_job_log line 2, character 11: is not JSON" in told("philly", path)
    path.write_text('{"jobid": "a"}')
    assert "is not a list of jobs" in told("philly", path)
    path.write_text('["a"]')
    assert "job number 1, jobid: 'a' is not a job" in told("philly", path)


def test_helios(tmp_path: Path) -> None:
    """Jobs without a GPU are left out; TIMEOUT and NODE_FAIL count as failed, as its authors do."""
    path = lines(
        tmp_path,
        SLURM_HEAD,
        "1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0",
        "1425512,uVMrF,vchbv,4,16,1,TIMEOUT,2020-06-09 18:41:27,2020-06-09 18:41:57,2020-06-09 18:45:36,219,30",
        "1425513,uzqls,vcpDC,0,1,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0",
    )
    trace = import_trace("helios", path)
    assert trace.left_out == 1
    assert trace.jobs == (
        TraceJob("1425511", 0, 36848, 1, user="uXBbc", state="completed"),
        TraceJob("1425512", 26, 219, 4, user="uVMrF", state="failed"),
    )


def test_acme_seren(tmp_path: Path) -> None:
    """Instants have a zone; the kind of work is kept; a job that never started is left out. Packed files are read."""
    text = "\n".join(
        [
            SEREN_HEAD,
            "5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,"
            "2023-03-01 00:20:51+08:00,117,32,936.0",
            "5778469,u5907,1,8.0,128,SFT,COMPLETED,2023-02-28 16:23:58+00:00,2023-03-01 00:24:11+08:00,"
            "2023-03-01 01:09:04+08:00,2693,13,21544.0",
            "5778470,u5907,1,8,128,SFT,CANCELLED,2023-03-01 00:24:00+08:00,,2023-03-01 00:25:00+08:00,0,60,0",
        ]
    )
    path = tmp_path / "trace_seren.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    trace = import_trace("acme", path)
    assert trace.left_out == 1
    assert trace.jobs == (
        TraceJob("5778432", 0, 117, 8, user="u5907", gpu_type="A100", state="failed", job_type="Other"),
        TraceJob("5778469", 336, 2693, 8, user="u5907", gpu_type="A100", state="completed", job_type="SFT"),
    )


def test_acme_kalos_durations_do_not_count_the_queue(tmp_path: Path) -> None:
    """Its column says 18 s from submission to end; the job held its GPUs for 8 of them."""
    path = lines(
        tmp_path,
        KALOS_HEAD,
        "dlctk696s0jbvitv,uf794,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,"
        "2023-05-17 11:01:08+00:00,2023-05-17 11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0",
    )
    assert import_trace("acme", path).jobs[0].duration_s == 8


def test_jobs_that_were_queued_again_get_ids_of_their_own(tmp_path: Path) -> None:
    """The rows of one id are several jobs to run."""
    row = "7,u,v,1,1,1,COMPLETED,2020-06-09 18:41:0{},2020-06-09 18:41:09,2020-06-09 18:42:09,60,0"
    trace = import_trace("helios", lines(tmp_path, SLURM_HEAD, *(row.format(second) for second in (1, 2, 3))))
    assert [job.job_id for job in trace.jobs] == ["7", "7#2", "7#3"]


def test_alibaba_pods(tmp_path: Path) -> None:
    """Queueing is not counted, a share of a GPU is a GPU, pods without a GPU or never scheduled are left out."""
    path = lines(
        tmp_path,
        POD_HEAD,
        "openb-pod-0017,88000,327680,8,1000,,Burstable,Succeeded,9437497,10769854,9437497",
        "openb-pod-0022,4000,15258,1,220,,BE,Running,9679175,9973826,9679200",
        "openb-pod-0035,16000,32768,1,1000,V100M16|V100M32,LS,Failed,9437500,9968575,9967063",
        "openb-pod-0036,16000,32768,0,0,,LS,Succeeded,9437500,9968575,9967063",
        "openb-pod-0037,16000,32768,1,1000,,LS,Pending,9437500,9968575,",
    )
    trace = import_trace("alibaba", path)
    assert trace.left_out == 2
    assert trace.jobs == (
        TraceJob("openb-pod-0017", 0, 1332357, 8, state="completed", job_type="Burstable"),
        TraceJob("openb-pod-0035", 3, 1512, 1, gpu_type="V100M16|V100M32", state="failed", job_type="LS"),
        TraceJob("openb-pod-0022", 241678, 294626, 1, state="running", job_type="BE"),
    )


TASK_HEAD = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type"
TASKS = (
    "j1,ps,1.0,Terminated,1000.0,1500.0,600.0,29.3,,",
    "j1,worker,5.0,Terminated,1010.0,1600.0,400.0,29.3,50.0,V100",
    "j2,tensorflow,1.0,Failed,1100.0,1160.0,600.0,29.3,25.0,MISC",
    "j3,tensorflow,1.0,Running,1200.0,,600.0,29.3,100.0,T4",
    "j4,xcpu,1.0,Terminated,1200.0,1300.0,600.0,29.3,,",
)


@pytest.mark.parametrize("header", [(), (TASK_HEAD,)])
def test_alibaba_tasks(tmp_path: Path, header: tuple[str, ...]) -> None:
    """With or without its header: tasks are put together by job, shares of GPUs added up and rounded up."""
    trace = import_trace("alibaba", lines(tmp_path, *header, *TASKS))
    assert trace.left_out == 2
    assert trace.jobs == (
        TraceJob("j1", 0, 600, 3, gpu_type="V100", state="completed"),
        TraceJob("j2", 100, 60, 1, gpu_type="MISC", state="failed"),
    )


@pytest.mark.parametrize(
    ("source", "rows", "expected"),
    [
        ("helios", ("job_id,gpu_num", "1,1"), "line 1: there is no column user, state, submit_time"),
        ("acme", (SLURM_HEAD,), "line 1: there is no column type"),
        ("alibaba", ("a,b", "1,2"), "line 1: there is no column job_name"),
        ("helios", (SLURM_HEAD, "1,u,v,x,1,1,FAILED,,,,5,0"), "line 2, column gpu_num: 'x' is not a number"),
        (
            "helios",
            (SLURM_HEAD, "1,u,v,1,1,1,FAILED,soon,2020-06-09 18:41:09,2020-06-09 18:42:09,60,0"),
            "line 2, column submit_time: 'soon' is no instant",
        ),
        ("alibaba", (POD_HEAD, "p,1,1,1,1000,,BE,Running,x,5,4"), "line 2, column creation_time: 'x' is not a number"),
        ("helios", (SLURM_HEAD,), "holds no job that ran on a GPU; 0 rows were left out. Is it the file of helios?"),
    ],
)
def test_faults_of_a_table_are_named(tmp_path: Path, source: str, rows: tuple[str, ...], expected: str) -> None:
    """File, line, column and value; another cluster's file is told from its columns."""
    assert expected in told(source, lines(tmp_path, *rows))


def test_an_unknown_source_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    """And a file that is not there with its path, whatever the source."""
    assert "source: 'borg' is none of philly, helios, acme, alibaba" in told("borg", tmp_path / "x")
    for source in READERS:
        assert "x: there is no such file" in told(source, tmp_path / "x")
