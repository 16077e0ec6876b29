"""Copies of trees and files, in parallel: into a mount, out of one, or between any two directories.

tree      what callers use: checks, reports, errors
crew      the threads, and what they do in which order
transfer  one file: under a temporary name, verified, renamed
progress  the counts, and a line on the terminal that shows them
"""

from volfs_client.copying.crew import Overwrite
from volfs_client.copying.progress import CopyCounts
from volfs_client.copying.tree import JOBS, copy_pairs, copy_tree

__all__ = ["JOBS", "CopyCounts", "Overwrite", "copy_pairs", "copy_tree"]
