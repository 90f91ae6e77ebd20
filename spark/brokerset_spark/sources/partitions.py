"""Partitions of the message sources, as Spark carries them."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from brokerset_spark.sources.plan import Piece


@dataclass
class PiecePartition(InputPartition):
    """One task's piece, as Spark carries it."""

    piece: Piece
