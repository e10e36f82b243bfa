"""Lives that once broke a law, kept as they were whatever becomes of the plans that seeds are drawn to."""

from __future__ import annotations

import pytest

from tests.simulation.plan import (
    HiddenRows,
    JobFault,
    Outage,
    PersonAct,
    Plan,
    SlurmFault,
    SubmitFault,
    SupervisorFault,
)
from tests.simulation.world import live

LIVES: dict[str, Plan] = {
    # P5: a person cancels the requeued job in the queue, the supervisor dies, Slurm forgets the job.
    "cancelled-in-the-queue": Plan(
        seed=10263,
        nodes=2,
        wanted=1,
        steps=39,
        step_s=7.0,
        graceful=True,
        may_drain=False,
        settings=(
            ("backoff", 0.0),
            ("backoff-max", 60.0),
            ("fault-grace", 20.0),
            ("exclude-cap", 0.5),
            ("exclude-for", 120.0),
            ("fence-wait", 60.0),
            ("lease", 20.0),
            ("poll", 10.0),
        ),
        job=(
            JobFault(kind="hold-launch", at_step=1, node=0, for_s=206.8191622646142),
            JobFault(kind="hold-launch", at_step=13, node=0, for_s=15.790531118214231),
            JobFault(kind="hold-launch", at_step=23, node=0, for_s=19.19715202033111),
            JobFault(kind="hold-launch", at_step=25, node=0, for_s=43.881831736836546),
            JobFault(kind="hold-launch", at_step=36, node=0, for_s=314.7727109623294),
        ),
        supervisors=(
            SupervisorFault(kind="crash", at_point=59, for_s=285.7269930295046, tear=63),
            SupervisorFault(kind="pause", at_point=17, for_s=1.4952716186637467, tear=0),
        ),
        skews_s=(0.0, 3600.0, 5.0),
        slurm=(SlurmFault(kind="down", at_s=17.822843968063243, for_s=90.0, lose=0, rewind=False),),
        lucky_front=True,
        people=(PersonAct(kind="scancel", at_s=299.4080520989104),),
        calm_s=546.0,
    ),
    # A job with spares goes on without its first node, which was lost before the script had written anything.
    "lost-before-it-began": Plan(
        seed=453,
        nodes=5,
        agent=True,
        spares=1,
        outages=(Outage(node=0, kind="freeze", at_s=1.4, for_s=500.0),),
        calm_s=600.0,
    ),
    # A checkpoint that was torn and then written anew is resumed from by the next start of the same job.
    "torn-and-written-anew": Plan(
        seed=13,
        steps=14,
        save_every=4,
        agent=True,
        job=(
            JobFault(kind="torn", at_step=8, node=0, for_s=0.0),
            JobFault(kind="kill", at_step=10, node=0, for_s=0.0),
        ),
        calm_s=200.0,
    ),
    # P11: one culprit is drained, the next one is lost: only the second one costs the job a node.
    "drained-and-lost": Plan(
        seed=10237,
        nodes=10,
        steps=40,
        save_every=4,
        settings=(
            ("backoff", 0.0),
            ("backoff-max", 60.0),
            ("fault-grace", 60.0),
            ("exclude-cap", 0.1),
            ("exclude-for", 86400.0),
            ("lease", 40.0),
            ("poll", 5.0),
        ),
        job=(
            JobFault(kind="crash", at_step=6, node=0, for_s=341.56836585471837),
            JobFault(kind="crash", at_step=27, node=1, for_s=81.90808099692444),
            JobFault(kind="crash", at_step=40, node=0, for_s=97.41712707138366),
        ),
        supervisors=(
            SupervisorFault(kind="pause", at_point=19, for_s=1.1955795685106787, tear=0),
            SupervisorFault(kind="crash", at_point=19, for_s=1.0958165720690332, tear=0),
            SupervisorFault(kind="crash", at_point=31, for_s=1.476722127569384, tear=0),
            SupervisorFault(kind="crash", at_point=51, for_s=407.09947783905125, tear=186),
            SupervisorFault(kind="crash", at_point=49, for_s=16.69059996584943, tear=0),
        ),
        skews_s=(-3600.0, 5.0, -3600.0),
        calm_s=320.0,
    ),
    # P1: the requeued job starts again while no supervisor lives, and cannot load its checkpoint.
    "torn-while-away": Plan(
        seed=11604,
        nodes=11,
        wanted=3,
        steps=27,
        step_s=7.0,
        save_every=3,
        may_drain=False,
        settings=(
            ("backoff", 5.0),
            ("backoff-max", 60.0),
            ("fault-grace", 60.0),
            ("exclude-cap", 0.5),
            ("exclude-for", 86400.0),
            ("lease", 12.0),
            ("poll", 2.0),
            ("retries", 3),
        ),
        job=(
            JobFault(kind="hold-launch", at_step=2, node=2, for_s=241.8214976231597),
            JobFault(kind="slurmd", at_step=20, node=0, for_s=43.68210086650763),
            JobFault(kind="torn", at_step=26, node=0, for_s=371.2645989302716),
        ),
        supervisors=(
            SupervisorFault(kind="pause", at_point=31, for_s=18.992431219371365, tear=0),
            SupervisorFault(kind="pause", at_point=29, for_s=13.606659221949965, tear=0),
            SupervisorFault(kind="crash", at_point=29, for_s=45.50015389736143, tear=0),
        ),
        second_at_s=47.32693600456648,
        skews_s=(5.0, 0.0, 0.0),
        slurm=(
            SlurmFault(kind="hung", at_s=168.81869483857298, for_s=90.0, lose=0, rewind=False),
            SlurmFault(kind="hung", at_s=122.55798962692496, for_s=5.0, lose=0, rewind=False),
        ),
        client=(("effect_lost", 0.4), ("submit_doubled", 0.1), ("submit_unheard", 0.02), ("late_s", 120.0)),
        lucky_front=True,
        calm_s=378.0,
    ),
    # P7: a fatal line that would have been survived, had the node not been lost right after it.
    "survived-then-lost": Plan(
        seed=11244,
        nodes=5,
        wanted=3,
        steps=22,
        save_every=2,
        requeue=False,
        settings=(
            ("backoff", 5.0),
            ("backoff-max", 60.0),
            ("fault-grace", 20.0),
            ("exclude-cap", 0.5),
            ("exclude-for", 86400.0),
            ("lease", 12.0),
            ("poll", 2.0),
        ),
        job=(
            JobFault(kind="survived", at_step=6, node=2, for_s=159.24522185388477),
            JobFault(kind="survived", at_step=9, node=0, for_s=168.03571059756587),
            JobFault(kind="survived", at_step=13, node=2, for_s=75.68189853069248),
            JobFault(kind="survived", at_step=19, node=2, for_s=343.3595696063687),
            JobFault(kind="crash", at_step=20, node=1, for_s=322.865766652096),
        ),
        supervisors=(SupervisorFault(kind="crash", at_point=10, for_s=255.15059800076853, tear=0),),
        second_at_s=33.23801703652091,
        skews_s=(5.0, 5.0, 5.0),
        lucky_front=True,
        calm_s=176.0,
    ),
    # Law 1: all retries would be used up, but for its progress, while the requeued job trains again already.
    "running-again": Plan(
        seed=30322,
        steps=32,
        may_drain=False,
        settings=(
            ("backoff", 5.0),
            ("backoff-max", 60.0),
            ("fault-grace", 20.0),
            ("exclude-cap", 0.5),
            ("exclude-for", 120.0),
            ("fence-wait", 10.0),
            ("lease", 20.0),
            ("poll", 10.0),
            ("retries", 1),
        ),
        job=(
            JobFault(kind="crash", at_step=4, node=0, for_s=37.697918593211284),
            JobFault(kind="crash", at_step=15, node=0, for_s=234.61574028692718),
            JobFault(kind="crash", at_step=18, node=1, for_s=182.65155872834205),
            JobFault(kind="survived", at_step=24, node=1, for_s=70.47400424619832),
            JobFault(kind="crash", at_step=30, node=0, for_s=227.50340938123367),
        ),
        second_at_s=32.471224113048436,
        skews_s=(0.0, -3600.0, 3600.0),
        client=(("read_fails", 0.1), ("submit_busy", 0.1), ("submit_late", 0.1), ("late_s", 120.0)),
        lucky_front=True,
        calm_s=256.0,
    ),
    # P5: a person cancels a job that has just lost a node, with the words of a hardware fault in its log.
    "cancelled-on-a-lost-node": Plan(
        seed=40269,
        nodes=8,
        wanted=4,
        steps=22,
        step_s=2.0,
        graceful=True,
        settings=(
            ("backoff", 5.0),
            ("backoff-max", 60.0),
            ("fault-grace", 60.0),
            ("exclude-cap", 1.0),
            ("exclude-for", 86400.0),
            ("lease", 40.0),
            ("poll", 5.0),
        ),
        job=(
            JobFault(kind="forged", at_step=4, node=3, for_s=69.19284173526886),
            JobFault(kind="forged", at_step=9, node=1, for_s=261.3533310780497),
            JobFault(kind="freeze", at_step=10, node=1, for_s=104.46985837244077),
            JobFault(kind="forged", at_step=10, node=1, for_s=174.2639736320466),
            JobFault(kind="freeze", at_step=14, node=3, for_s=221.86822855112152),
        ),
        supervisors=(
            SupervisorFault(kind="crash", at_point=54, for_s=234.67938621643972, tear=0),
            SupervisorFault(kind="crash", at_point=58, for_s=0.8459528396012572, tear=0),
        ),
        second_at_s=29.634183002037638,
        skews_s=(-3600.0, 3600.0, -3600.0),
        client=(("drop_row", 0.4), ("effect_unheard", 0.4), ("submit_late", 0.02), ("late_s", 10.0)),
        lucky_front=True,
        people=(PersonAct(kind="scancel", at_s=26.26057046448887),),
        calm_s=88.0,
    ),
    # P5: a person cancels the requeued job while the supervisor stands still, and Slurm forgets it before anyone looks.
    "cancelled-while-we-stood-still": Plan(
        seed=514,
        nodes=3,
        wanted=2,
        steps=25,
        step_s=7.0,
        save_every=4,
        may_drain=False,
        settings=(
            ("backoff", 0.0),
            ("backoff-max", 60.0),
            ("fault-grace", 60.0),
            ("exclude-cap", 0.1),
            ("exclude-for", 120.0),
            ("lease", 20.0),
            ("poll", 5.0),
        ),
        job=(JobFault("requeue", 1, 1, 116.0), JobFault("requeue", 7, 1, 272.65)),
        supervisors=(
            SupervisorFault("crash", 3, 8.98612458009516),
            SupervisorFault("pause", 7, 249.2893010034821),
        ),
        skews_s=(5.0, 0.0, 5.0),
        slurm=(SlurmFault("down", 4.25, 90.0), SlurmFault("crash", 243.7, 60.0, lose=1)),
        outages=(Outage(0, "slurmd", 160.1, 194.8), Outage(2, "drain", 69.76, 270.5)),
        lucky_front=True,
        people=(PersonAct("scancel", 205.625),),
        calm_s=354.9,
    ),
    # Law 1: all retries are used up, and the answers lack the requeued job, which trains again already.
    "running-again-unseen": Plan(
        seed=200635,
        nodes=2,
        steps=38,
        step_s=7.0,
        save_every=2,
        may_drain=False,
        settings=(
            ("backoff", 5.0),
            ("backoff-max", 60.0),
            ("fault-grace", 20.0),
            ("exclude-cap", 1.0),
            ("exclude-for", 86400.0),
            ("lease", 12.0),
            ("poll", 2.0),
            ("retries", 1),
        ),
        job=tuple(JobFault("preempt", step, 0, 60.0) for step in (9, 16, 24, 27, 31)),
        skews_s=(3600.0, -3600.0, 5.0),
        client=(("drop_row", 0.1), ("effect_lost", 0.4), ("submit_lost", 0.02), ("late_s", 45.0)),
        hidden=(HiddenRows(146.02417546197233, 200.0, "look"),),
        calm_s=532.0,
    ),
    # Given up without need: its node died just before Slurm gave it to the job, so no node had seen the run's folder.
    "begun-on-a-dead-node": Plan(
        seed=30440,
        nodes=4,
        wanted=2,
        least=1,
        steps=10,
        settings=(("backoff", 0.0), ("fence-wait", 10.0), ("lease", 40.0), ("poll", 2.0)),
        slurm=(SlurmFault("crash", 121.7, 90.0),),
        outages=(Outage(0, "crash", 98.1, 1457.7),),
        strangers=((1, 187.6, 200.0), (0, 96.4, 30.0), (2, 48.0, 30.0), (3, 27.1, 2000.0)),
        haunted=2,
        crowded_s=111.7,
        calm_s=2027.1,
    ),
    # P7: a node thaws and writes its last words into the log of its successor, which loads in silence.
    "thawed-into-its-successor-s-log": Plan(
        seed=1,
        nodes=3,
        steps=14,
        one_log=True,
        load_s=400.0,
        settings=(("fault-grace", 5.0),),
        job=(JobFault("freeze", 4, 0, 150.0),),
        calm_s=400.0,
    ),
    # P6: a silent node comes back and goes again while Slurm cannot be seen; its old rank trains until the second loss.
    "silent-twice-while-blind": Plan(
        seed=204076,
        nodes=2,
        wanted=1,
        steps=28,
        step_s=2.0,
        settings=(
            ("backoff", 0.0),
            ("backoff-max", 60.0),
            ("fault-grace", 20.0),
            ("exclude-cap", 1.0),
            ("exclude-for", 86400.0),
            ("lease", 12.0),
            ("poll", 2.0),
        ),
        job=(JobFault("freeze", 4, 0, 57.97057191874653), JobFault("freeze", 15, 0, 343.9795161717538)),
        slurm=(SlurmFault("down", 47.85422260839995, 90.0),),
        submits=(SubmitFault(1, "unheard", 150.0),),
        calm_s=137.85422260839994,
    ),
}
ENDS = dict.fromkeys(
    (
        "cancelled-in-the-queue",
        "cancelled-while-we-stood-still",
        "cancelled-on-a-lost-node",
    ),
    "stopped",
)


@pytest.mark.parametrize("name", LIVES)
def test_a_life_that_broke_a_law_keeps_them_all(name: str) -> None:
    """What was mended stays mended: the laws hold, and each life comes to its end."""
    outcome, broken, _ = live(LIVES[name])

    assert (outcome, broken) == (ENDS.get(name, "finished"), [])


def test_the_last_words_of_a_thawed_node_put_its_successor_under_no_suspicion() -> None:
    """They are told as another job's and are evidence of nothing, in all the time in which the successor says nothing itself."""
    _, _, world = live(LIVES["thawed-into-its-successor-s-log"])
    told = [(record["kind"], record["data"]) for record in world.laws.told if record["attempt"] == 2]

    assert "Node failure on n00" in "".join(data["text"] for kind, data in told if kind == "line.ignored")
    assert [] == [data for kind, data in told if kind == "fault.suspected"]
    assert [] == [
        data for kind, data in told if kind == "evidence" and data["signature"].startswith("slurm-")
    ]
