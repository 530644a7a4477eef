"""Metric names of the runtime, each with its unit. Scaling, dashboards and alerts read these and no others."""

KV_TOKENS_CAPACITY = "octavo_kv_tokens_capacity"
KV_TOKENS_USED = "octavo_kv_tokens_used"
"""Tokens in pages that requests reference, never retained prefixes."""
KV_PAGES_FREE = "octavo_kv_pages_free"
REQUESTS_RUNNING = "octavo_requests_running"
REQUESTS_WAITING = "octavo_requests_waiting"
BATCH_SLOTS = "octavo_batch_slots"
PROMPT_TOKENS = "octavo_prompt_tokens"
GENERATION_TOKENS = "octavo_generation_tokens"
REQUESTS_FINISHED = "octavo_requests_finished"
"""Counter by finish reason: stop, length, cancelled, error."""
ADMISSION_REJECTIONS = "octavo_admission_rejections"
TIME_TO_FIRST_TOKEN_SECONDS = "octavo_time_to_first_token_seconds"
INTER_TOKEN_LATENCY_SECONDS = "octavo_inter_token_latency_seconds"
ENGINE_STEPS = "octavo_engine_steps"
KERNEL_INFO = "octavo_kernel_info"
"""Info by operation and implementation."""
MEMORY_PLANNED_BYTES = "octavo_memory_planned_bytes"
MEMORY_MEASURED_BYTES = "octavo_memory_measured_bytes"
INTEGRITY_CHECKS = "octavo_kv_integrity_checks"
INTEGRITY_VIOLATIONS = "octavo_kv_integrity_violations"
"""Counter by reason: tag, range, writer, fill, binding, stale_verdict."""
INTEGRITY_CANCELLED = "octavo_kv_integrity_requests_cancelled"

VLLM_ALIASES = {
    REQUESTS_RUNNING: "vllm:num_requests_running",
    REQUESTS_WAITING: "vllm:num_requests_waiting",
}
"""Names that the Gateway API inference extension and llm-d read, same meaning and unit."""
VLLM_KV_USAGE = "vllm:kv_cache_usage_perc"
"""Share of KV tokens in use, 0 to 1 in spite of its name."""
VLLM_CACHE_CONFIG = "vllm:cache_config_info"
