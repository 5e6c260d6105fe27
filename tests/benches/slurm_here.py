"""A Slurm of one node in a scratch folder, for tests. It needs root, `slurm-wlm` and `munge`."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={control}
SlurmdPort={daemon}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
KillWait=5
SlurmctldParameters=preempt_send_user_signal
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=4000
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Return why Slurm cannot run here."""
    absent = [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if not find(name)]
    if absent:
        return f"{', '.join(absent)} not installed (slurm-wlm, munge)"
    return None if os.geteuid() == 0 else "Slurm's daemons need root"


def find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Start the daemons. Return the environment for Slurm's commands."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    conf, host = folder / "slurm.conf", socket.gethostname().partition(".")[0]
    cpus, ports = os.cpu_count(), {"control": free_port(), "daemon": free_port()}
    conf.write_text(CONF.format(host=host, folder=folder, cpus=cpus, **ports))
    munge = Path("/run/munge")
    munge.mkdir(exist_ok=True)
    shutil.chown(munge, "munge", "munge")
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    as_munge = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups"]
    daemons = [
        subprocess.Popen([*as_munge, find("munged"), "--force", "--foreground"]),
        subprocess.Popen([find("slurmctld"), "-D", "-c"], env=environment),
        subprocess.Popen([find("slurmd"), "-D", "-N", host], env=environment),
    ]
    try:
        ends = time.monotonic() + 60
        while (
            "idle"
            not in subprocess.run(
                ["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True
            ).stdout
        ):
            assert time.monotonic() < ends, (folder / "slurmctld.log").read_text()
            time.sleep(0.5)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()
