"""The backoff: how long a message that failed waits before it is delivered again."""

from quivermq.queue.topic_settings import TopicSettings


def backoff_ms(settings: TopicSettings, failures: int) -> int:
    """The wait after so many failures: the first one apart, then doubling up to the longest."""
    if failures <= 1:
        return settings.retry_first_ms
    # More doublings than this pass any longest wait that can be set.
    doubled = settings.retry_base_ms << min(failures - 2, 62)
    return min(doubled, settings.retry_longest_ms)
