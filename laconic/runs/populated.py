"""A setting with a population: its plan and its partitions, or why it cannot be."""

import jax

from laconic.client import gradient_client
from laconic.errors import LaconicError
from laconic.federated.population import RUNS, Plan, Population, check_rows, plan_for, settle
from laconic.method import Method, Setting
from laconic.tasks.base import Task


def populated(
    task: Task, method: Method, setting: Setting, population: Population | None = None
) -> tuple[Plan | None, Population | None]:
    """The plan and the partitions [S, …] of a setting with a population, or nothing; what cannot
    work is refused."""
    options, K, B = setting.federated, setting.workers, setting.batch
    if population is None and not options.active:
        return None, None
    if setting.missing:
        raise LaconicError(
            "clients of a population drop out by --federated.dropout; leave --missing out."
        )
    if method.budget(K, 1) != (K, 1):
        raise LaconicError(
            f"{method.label} works on all data in one place, so it has no part in a population."
        )
    if population is None:
        plan, population = settle(options, task, K, B, RUNS, setting.seeds)
    else:
        check_rows(population, task)
        plan = plan_for(options, population, K, B)
        if population.rows.shape[0] != len(setting.seeds):
            raise LaconicError(
                f"{population.rows.shape[0]} partitions for {len(setting.seeds)} seeds: give one "
                "each."
            )
    if plan.uneven and method.client is gradient_client:
        raise LaconicError(
            f"{method.label} takes no local steps, so its clients cannot take different numbers of "
            "them."
        )
    return plan, jax.device_put(population)
