"""Show what clothes are worth on digits: a classifier of FashionMNIST scored on MNIST's test set.

The paper's three scripts for augmented FashionMNIST load the test set of MNIST. Hence accuracies
of 6.62, 7.46 and 8.61 %, below the 10 % of guessing. ``augmentation.py`` has the chains; this is
the arithmetic, with a linear classifier in place of the network::

    python examples/paper/faults/wrong_test_set.py FOLDER

FOLDER holds MNIST/raw and FashionMNIST/raw.
"""

import sys

from sklearn.linear_model import SGDClassifier
from sklearn.metrics import accuracy_score

from pyro_fnbg import fashion_mnist, mnist

if len(sys.argv) != 2:
    raise SystemExit("name the folder that holds MNIST/raw and FashionMNIST/raw")
clothes, digits = fashion_mnist(sys.argv[1]), mnist(sys.argv[1])
classifier = SGDClassifier(loss="log_loss", max_iter=5, tol=None, random_state=0)
classifier.fit(clothes.x_train, clothes.y_train)
for name, data in (("FashionMNIST", clothes), ("MNIST", digits)):
    score = accuracy_score(data.y_test, classifier.predict(data.x_test))
    print(f"trained on FashionMNIST, scored on the test set of {name}: {100 * score:.2f} %")
