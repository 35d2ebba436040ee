"""Replicated databases: the same operations, in the same order, on every copy."""

from unisono.replicas.config import ReplicaConfig
from unisono.replicas.execution import Execution
from unisono.replicas.operation import SqlAnswer, SqlResult
from unisono.replicas.replica import Replica

__all__ = ["Execution", "Replica", "ReplicaConfig", "SqlAnswer", "SqlResult"]
