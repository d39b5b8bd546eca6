"""Workers share a topic; one of them is killed in the middle of its work, and no job is lost."""

import multiprocessing
import os
import signal
import time

import quivermq
from quivermq.testing import Cluster

JOBS = 60


def work(servers: str, name: str, jobs_to_live: int) -> None:
    """Poll jobs, do them, and only then acknowledge them."""
    with quivermq.connect(servers) as client:
        while True:
            # A job that is not acknowledged within `visibility` seconds goes to another worker.
            for job in client.poll("jobs", group="workers", max_messages=5, visibility=2.0):
                time.sleep(0.02)
                if not jobs_to_live:
                    print(f"{name} is killed in the middle of {job.value.decode()}", flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)
                if job.delivery_count > 1:
                    print(f"{name} takes over {job.value.decode()}", flush=True)
                client.produce("results", b"%s: %s" % (name.encode(), job.value))
                job.ack()
                jobs_to_live -= 1


def main() -> None:
    processes = multiprocessing.get_context("spawn")
    with Cluster(nodes=1) as cluster, cluster.connect() as client:
        client.create_topic("jobs")
        client.create_topic("results")
        client.produce_many("jobs", [b"job %d" % number for number in range(JOBS)])
        workers = [
            processes.Process(target=work, args=(cluster.servers, "clumsy", 2)),
            *(
                processes.Process(target=work, args=(cluster.servers, name, JOBS * 10))
                for name in ("steady", "trusty")
            ),
        ]
        try:
            for worker in workers:
                worker.start()
                # The clumsy one leases its jobs before the others start.
                cluster.wait_until(lambda: client.topic("results").message_count, "nobody works")
            cluster.wait_until(
                lambda: client.group("jobs", "workers").done == JOBS, "the jobs are not done"
            )
        finally:
            for worker in workers:
                if worker.pid is not None:
                    worker.kill()
                    worker.join()

        results = [message.value.decode().split(": ") for message in client.read("results")]
        for name in sorted({name for name, _ in results}):
            print(f"{name} did {sum(name == each for each, _ in results)} jobs")
        # A job whose worker dies between its work and its ack is done again.
        done = {job for _, job in results}
        print(f"{JOBS - len(done)} of {JOBS} jobs lost, {len(results) - len(done)} done twice")


if __name__ == "__main__":
    main()
