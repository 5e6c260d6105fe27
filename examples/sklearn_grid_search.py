"""Choose options of PEER with scikit-learn: cross-validation on the source images.

`PeerClassifier` works wherever scikit-learn expects a classifier. A grid trains each option with
each fold, so start with few epochs.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV

from peerdg.integrations.sklearn import PeerClassifier

digits = load_digits()
images = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # [N, 8, 8]
images = images.repeat(4, axis=1).repeat(4, axis=2)  # [N, 32, 32]
train, test = slice(0, 300), slice(1500, None)

classifier = PeerClassifier("peer", epochs=4, batch_size=50, backbone="digits-cnn-half")
options = [{"pretrain": {"epochs": 4}, "peer": {"k": 2, "w": w}} for w in (0.01, 0.1)]
search = GridSearchCV(classifier, {"options": options}, cv=2)
search.fit(images[train], digits.target[train])
print("Best options:", search.best_params_["options"])
print(f"Accuracy in cross-validation: {search.best_score_:.2f}")
print(f"Accuracy on other digits: {search.score(images[test], digits.target[test]):.2f}")
