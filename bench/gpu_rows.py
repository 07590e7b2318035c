"""The rows of bench/run.py --gpu, in their order. docs/performance.md explains them.

The whole must fit a short lease of a GPU machine, so every row has its share of the time: a race stops early when its
share is over, and a row that could not make three rounds is reported as not measured.
"""

import gpu_file_rows as files
import gpu_model_rows as models
import gpu_queue_rows as queues
import gpu_size_rows as sizes
import gpu_table_rows as tables

ROWS = {"cached": (files.row_cached, 34), "sizes": (sizes.row_sizes, 80), "size_writes": (sizes.row_size_writes, 80),
        "lanes": (files.row_lanes, 60), "scatter": (files.row_scatter, 12),
        "tables": (tables.row_tables, 95), "table_cache": (tables.row_table_cache, 25),
        "queues": (queues.row_queues, 60), "queue_files": (queues.row_queue_files, 40), "arrays": (queues.row_arrays, 20),
        "packed": (models.row_packed, 60), "memory": (files.row_memory, 6), "start": (files.row_start, 40),
        "cold": (files.row_cold, 70), "half": (files.row_half, 75), "packed_cold": (models.row_packed_cold, 70),
        "cold_tables": (tables.row_cold_tables, 60), "layers": (models.row_layers, 100),
        "experts": (models.row_experts, 20), "latency": (files.row_latency, 45), "write": (files.row_write, 75)}
