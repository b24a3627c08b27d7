import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", type=float, default=3e-4)
parser.add_argument("--warmup", type=int, default=100)
parser.add_argument("--schedule", choices=["cosine", "linear"], default="cosine")
args = parser.parse_args()
print("training", args.learning_rate, args.schedule)
