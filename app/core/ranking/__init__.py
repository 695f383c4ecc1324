"""On which node a pod is placed where nodes have GPUs that can be shared, CPUs and memory, and nothing is moved later.

A ranker compares what a node has left before a pod came and after: the lowest rank wins, and ties go to the first node
by name. All are pure functions of the two states and of the pods that are expected.

`first-fit`: the first node by name.
`best-fit`: where the least CPUs and GPUs stay free, as shares of the largest node.
`idle-gpus`: where the fewest GPUs stay idle, the first of the SpotGPU paper's three criteria (section 4.2). The others
tell classes of jobs and past evictions apart, of which there are none here: they would be ties.
`gradient`: where fragmentation grows least (Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 4).
`gradient-rounded`: the same as its authors' scheduler has it, where the growth is squeezed to whole hundredths. It
leaves out the rarest twentieth of the expected pods, which here count too.
`ours`: fragmentation, GPUs for which CPUs or memory will be lacking, and kinds of GPU that are short.
"""

from app.core.ranking.model import NodeLeft, PodNeed, ways_to_place
from app.core.ranking.pool import PodPlace, RankedPool
from app.core.ranking.rankers import Rank, RankerName, Ranking, ranking_of

__all__ = [
    "NodeLeft",
    "PodNeed",
    "PodPlace",
    "Rank",
    "RankedPool",
    "RankerName",
    "Ranking",
    "ranking_of",
    "ways_to_place",
]
