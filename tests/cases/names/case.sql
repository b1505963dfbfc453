CREATE TABLE `select`(`id` INT PRIMARY KEY, `with space` INT, `größe` INT, `_x41_` INT, `1` INT, `a-b` BIGINT UNSIGNED, `a_b` BIGINT UNSIGNED);
INSERT INTO `select` VALUES (1, 2, 3, 4, 5, 6, 7);
